// Helpers that the other modules share: elements, downloads, number formats and base64.
export const $ = id => document.getElementById(id);

/** Create an element with attributes and children. Attributes that start with "on" are listeners. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

/** The content type of bytes whose type is unknown. */
export const ANY_BYTES = "application/octet-stream";

const REVOKE_DELAY_MS = 10000; // The browser needs the URL until the download has begun.
const BASE64_CHUNK = 32768; // String.fromCharCode takes a limited number of arguments.

let lastId = 0;
/** Return an element id that is unique in the page. */
export const newId = () => `f${++lastId}`;

/** Download content as a file. */
export function download(fileName, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  make("a", { href: url, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(url), REVOKE_DELAY_MS);
}

export const formatMilliseconds = value => (value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`);

/** Format a number with at most four digits. */
export const formatNumber = value =>
  typeof value !== "number" ? String(value) : Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));

export async function toBase64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let binary = "";
  for (let start = 0; start < bytes.length; start += BASE64_CHUNK) binary += String.fromCharCode(...bytes.subarray(start, start + BASE64_CHUNK));
  return btoa(binary);
}

/** Decode base64, or a data URL. Without a type, the first bytes tell it. */
export function fromBase64(text, type) {
  const start = text.startsWith("data:") ? text.indexOf(",") + 1 : 0;
  const binary = atob(text.slice(start));
  return new Blob([Uint8Array.from(binary, character => character.charCodeAt(0))], { type: type || detectContentType(binary) });
}

/** Tell the content type by the first bytes. */
function detectContentType(binary) {
  if (binary.startsWith("\x89PNG")) return "image/png";
  if (binary.startsWith("\xff\xd8")) return "image/jpeg";
  if (binary.startsWith("RIFF")) return binary.slice(8, 12) === "WEBP" ? "image/webp" : "audio/wav";
  if (binary.startsWith("OggS")) return "audio/ogg";
  if (binary.startsWith("fLaC")) return "audio/flac";
  if (binary.startsWith("ID3")) return "audio/mpeg";
  if (binary.startsWith("%PDF")) return "application/pdf";
  return ANY_BYTES;
}

/** The endings of content types whose name is not their ending. */
const ENDINGS = { jpeg: "jpg", mpeg: "mp3", wave: "wav", "svg+xml": "svg", plain: "txt", "octet-stream": "bin", quicktime: "mov" };
/** Return a file name with the usual ending of a content type. */
export function fileName(name, type) {
  const [kind, subtype] = type.split(";")[0].trim().toLowerCase().replace("/x-", "/").split("/");
  return `${name}.${kind === "video" && subtype === "mpeg" ? "mpg" : kind === "audio" && subtype === "mp4" ? "m4a" : ENDINGS[subtype] || subtype || "bin"}`;
}

/** Return a docstring's text as nodes, with the parts between backticks as code. */
export const docstringNodes = text => text.split(/``?([^`]+)``?/).map((part, index) => (index % 2 ? make("code", {}, part) : part));

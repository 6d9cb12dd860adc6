// Small helpers that the other modules share.
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

let count = 0;
export const newId = () => `f${++count}`;

export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export const milliseconds = value => (value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`);

/** Format a number with at most four digits. */
export const shortNumber = value =>
  typeof value !== "number" ? String(value) : Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));

export async function toBase64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}

export function fromBase64(text, type) {
  const start = text.startsWith("data:") ? text.indexOf(",") + 1 : 0;
  const binary = atob(text.slice(start));
  return new Blob([Uint8Array.from(binary, character => character.charCodeAt(0))], { type: type || sniff(binary) });
}

/** Tell the content type by the first bytes. */
function sniff(binary) {
  if (binary.startsWith("\x89PNG")) return "image/png";
  if (binary.startsWith("\xff\xd8")) return "image/jpeg";
  if (binary.startsWith("RIFF")) return binary.slice(8, 12) === "WEBP" ? "image/webp" : "audio/wav";
  if (binary.startsWith("OggS")) return "audio/ogg";
  if (binary.startsWith("ID3")) return "audio/mpeg";
  return "application/octet-stream";
}

/** Show a docstring's text, with the parts between backticks as code. */
export const prose = text => text.split(/``?([^`]+)``?/).map((part, index) => (index % 2 ? make("code", {}, part) : part));

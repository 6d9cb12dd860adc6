// Show a result by its kind. A view is null if the result does not fit the kind; then it is shown as JSON.
import { download, fileName, formatNumber, fromBase64, make } from "./dom.js";
import { overlay } from "./overlay.js";

const MAX_ROWS = 200;
const MAX_CELL_CHARACTERS = 160;
const WAVEFORM_WIDTH = 640, WAVEFORM_HEIGHT = 96; // pixels
const ANY_RATE = 44100; // the browser decodes a recording at some rate

/** sent: what the request's record has: {picture: Blob or null, text: string}. */
export async function showResult(kind, result, sent) {
  const file = fileIn(result);
  if (file) return fileView(file);
  if (!kind) return null;
  const value = kind.items && result && typeof result === "object" && kind.items in result ? result[kind.items] : result;
  const view = VIEWS[kind.kind];
  try {
    return view ? await view(kind, value, sent) : null;
  } catch (error) {
    console.warn(error);
    return null;
  }
}

const isObject = value => value !== null && typeof value === "object" && !Array.isArray(value);
/** True for the content type of a body that is shown as text or JSON. */
export const isText = type => /^$|^text\/|[/+](json|jsonlines|xml)\b/.test(type) && !type.startsWith("image/");

/** Return the file that a result is: the base64 in its only text beside `content_type`. Else null. */
export function fileIn(result) {
  if (!isObject(result) || !/^\w+\/[\w.+-]+/.test(result.content_type) || isText(result.content_type)) return null;
  const texts = Object.keys(result).filter(name => name !== "content_type" && typeof result[name] === "string");
  try {
    return texts.length === 1 ? fromBase64(result[texts[0]], result.content_type) : null;
  } catch {
    return null;
  }
}

/** Show a picture, play a recording or a film; every file can be downloaded. */
async function fileView(file) {
  const kind = file.type.split("/")[0], src = URL.createObjectURL(file);
  const views = {
    image: () => [make("div", { class: "picture-frame" }, make("img", { class: "picture", alt: "The picture of the answer", src }))],
    audio: async () => [make("audio", { controls: true, src }), await waveform(file)],
    video: () => [make("video", { controls: true, class: "picture", src })],
  };
  const name = kind === "image" ? "picture" : "answer";
  return make("div", { class: "file-result" }, ...(await views[kind]?.() ?? []),
    make("div", { class: "tools" }, make("span", {}, `${file.type} · ${formatSize(file.size)}`),
      make("button", { type: "button", id: `save-${name}`, onclick: () => download(fileName(name, file.type), file) }, kind === "image" ? "Download picture" : "Download file")));
}

const formatSize = bytes => (bytes < 1000 ? `${bytes} bytes` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** Draw a recording's loudness over its time; null if the browser cannot decode it. */
async function waveform(file) {
  const sound = await new OfflineAudioContext(1, 1, ANY_RATE).decodeAudioData(await file.arrayBuffer()).catch(() => null);
  if (!sound) return null;
  const canvas = make("canvas", { class: "waveform", role: "img", "aria-label": `Waveform of ${sound.duration.toFixed(1)} s`, width: WAVEFORM_WIDTH, height: WAVEFORM_HEIGHT });
  const context = canvas.getContext("2d"), samples = sound.getChannelData(0), perColumn = samples.length / WAVEFORM_WIDTH;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bar");
  for (let x = 0; x < WAVEFORM_WIDTH; x++) {
    let peak = 0;
    for (let index = Math.floor(x * perColumn); index < (x + 1) * perColumn; index++) peak = Math.max(peak, Math.abs(samples[index] ?? 0));
    const height = Math.max(1, Math.min(1, peak) * WAVEFORM_HEIGHT);
    context.fillRect(x, (WAVEFORM_HEIGHT - height) / 2, 1, height);
  }
  return canvas;
}

const formatShare = score => `${(score * 100).toFixed(1)} %`;

/** A bar of a list of results; `share` is from 0 to 1. */
function barOf(share) {
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: "track" }, bar);
}

const VIEWS = {
  classes(kind, rows) {
    if (!Array.isArray(rows)) return null;
    const pairs = rows.map(row => (isObject(row) ? [row[kind.label], row[kind.score]] : parseRow(kind.row, row)));
    if (!pairs.length || pairs.some(pair => !pair || pair[0] === undefined || !Number.isFinite(pair[1]))) return null;
    pairs.sort((one, other) => other[1] - one[1]);
    const areShares = pairs.every(([, score]) => score >= 0 && score <= 1);
    const largest = areShares ? 1 : Math.max(...pairs.map(([, score]) => Math.abs(score))) || 1;
    return make("ol", { class: "bars" }, ...pairs.map(([label, score]) => make("li", {},
      make("span", { class: "name" }, String(label)),
      make("span", { class: "score" }, areShares ? formatShare(score) : formatNumber(score)),
      barOf(score / largest))));
  },
  boxes: objectsView,
  masks: objectsView,
  text(kind, value, sent) {
    const rows = (Array.isArray(value) ? value : [value]).map(row => (typeof row === "string" ? { [kind.text]: row } : row));
    if (!rows.length || rows.some(row => typeof row?.[kind.text] !== "string")) return null;
    if (rows.length === 1 && !Number.isFinite(rows[0][kind.score]))
      return make("p", { class: "text-result" }, ...highlightReplaced(rows[0][kind.text], sent.text, kind.mark));
    return make("ol", { class: "bars text-bars" }, ...rows.map(row => make("li", {},
      make("span", { class: "name" }, ...highlightReplaced(row[kind.text], sent.text, kind.mark)),
      Number.isFinite(row[kind.score]) ? make("span", { class: "score" }, formatShare(row[kind.score])) : null,
      barOf(row[kind.score] || 0))));
  },
  table(kind, value) {
    if (Array.isArray(value) && value.length && value.every(isObject)) {
      const names = [...new Set(value.flatMap(Object.keys))];
      return tableView(names, value.map(row => names.map(name => row[name])));
    }
    if (Array.isArray(value) && value.length && value.every(Array.isArray))
      return tableView(value[0].map((_, index) => String(index)), value);
    if (Array.isArray(value) && value.length) return tableView(["#", "value"], value.map((item, index) => [index, item]));
    if (!isObject(value)) return null;
    const columns = Object.values(value);
    if (columns.length && columns.every(column => Array.isArray(column) && column.length === columns[0].length))
      return tableView(Object.keys(value), columns[0].map((_, index) => columns.map(column => column[index])));
    return tableView(["name", "value"], Object.entries(value));
  },
};

async function objectsView(kind, rows, sent) {
  if (!Array.isArray(rows) || !sent.picture || !rows.every(isObject)) return null;
  const view = await overlay(kind, rows, sent.picture);
  if (view && !rows.length) view.prepend(make("p", { class: "empty" }, "Nothing was found in this picture."));
  return view;
}

/** Read a string by a pattern such as "{score}:{index}:{label}". The last field takes the rest of the string. */
function parseRow(pattern, row) {
  if (!pattern || typeof row !== "string") return null;
  const names = [...pattern.matchAll(/{(\w+)}/g)].map(match => match[1]);
  const separators = pattern.split(/{\w+}/).map(text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const ending = separators.pop();
  const match = row.match(new RegExp(`^${separators.map((text, index) => `${text}(${index === separators.length - 1 ? ".*" : ".*?"})`).join("")}${ending}$`, "s"));
  if (!match) return null;
  const fields = Object.fromEntries(names.map((name, index) => [name, match[index + 1]]));
  return [fields.label, Number(fields.score)];
}

/** Return the text as nodes, with a <mark> around what replaces each `placeholder` of the sent text. */
function highlightReplaced(text, sentText, placeholder) {
  if (!placeholder || !sentText || !sentText.includes(placeholder)) return [text];
  const parts = sentText.split(placeholder), nodes = [];
  let end = 0; // of the text that is in nodes
  for (const [index, part] of parts.entries()) {
    if (index === 0) {
      const trimmed = part.trimEnd();
      if (!text.startsWith(trimmed)) return [text];
      end = text.startsWith(part) ? part.length : trimmed.length;
      nodes.push(text.slice(0, end));
      continue;
    }
    const start = index === parts.length - 1 ? text.length - part.length : text.indexOf(part || " ", end);
    if (start < end || text.slice(start, start + part.length) !== part) return [text];
    nodes.push(make("mark", {}, text.slice(end, start)), part);
    end = start + part.length;
  }
  return nodes;
}

function tableView(names, rows) {
  const cell = value => (typeof value === "number" ? formatNumber(value) : isObject(value) || Array.isArray(value) ? shorten(JSON.stringify(value)) : String(value ?? ""));
  return make("div", { class: "table", tabindex: 0, role: "region", "aria-label": "The result as a table" },
    make("table", {}, make("thead", {}, make("tr", {}, ...names.map(name => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.slice(0, MAX_ROWS).map(row => make("tr", {}, ...row.map(value => make("td", {}, cell(value))))))),
    rows.length > MAX_ROWS ? make("p", { class: "help" }, `${rows.length - MAX_ROWS} more rows are in the JSON.`) : null);
}
const shorten = text => (text.length > MAX_CELL_CHARACTERS ? `${text.slice(0, MAX_CELL_CHARACTERS)}…` : text);

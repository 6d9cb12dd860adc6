// Show a result by its kind. A view is null if the result does not fit the kind; then it is shown as JSON.
import { fromBase64, make, save, shortNumber } from "./dom.js";
import { overlay } from "./overlay.js";

/** sent: {picture: Blob or null, text: string} of the request's record. */
export async function show(kind, result, sent) {
  if (result && typeof result.image === "string" && String(result.content_type || "").startsWith("image/")) return pictureOf(result);
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

function pictureOf({ image, content_type: type }) {
  const blob = fromBase64(image, type);
  return make("div", { class: "overlay" },
    make("div", { class: "stage" }, make("img", { class: "picture", alt: "The picture of the answer", src: `data:${type};base64,${image}` })),
    make("div", { class: "tools" }, make("button", { type: "button", id: "save-picture", onclick: () => save(`picture.${type.split("/")[1]}`, blob) }, "Download picture")));
}

const isObject = value => value !== null && typeof value === "object" && !Array.isArray(value);

const VIEWS = {
  classes(kind, rows) {
    if (!Array.isArray(rows)) return null;
    const pairs = rows.map(row => (isObject(row) ? [row[kind.label], row[kind.score]] : fromRow(kind.row, row)));
    if (!pairs.length || pairs.some(each => !each || each[0] === undefined || !Number.isFinite(each[1]))) return null;
    const areShares = pairs.every(([, score]) => score >= 0 && score <= 1);
    const largest = areShares ? 1 : Math.max(...pairs.map(([, score]) => Math.abs(score))) || 1;
    return make("ol", { class: "bars" }, ...pairs.map(([label, score]) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = `${Math.max(0, (score / largest) * 100)}%`;
      return make("li", {}, make("span", { class: "name" }, String(label)), make("span", { class: "score" }, areShares ? `${(score * 100).toFixed(1)} %` : shortNumber(score)), make("span", { class: "track" }, bar));
    }));
  },
  boxes: boxes,
  masks: boxes,
  text(kind, value, sent) {
    const rows = (Array.isArray(value) ? value : [value]).map(row => (typeof row === "string" ? { [kind.text]: row } : row));
    if (!rows.length || rows.some(row => typeof row?.[kind.text] !== "string")) return null;
    if (rows.length === 1 && !Number.isFinite(rows[0][kind.score]))
      return make("p", { class: "words" }, ...highlight(rows[0][kind.text], sent.text, kind.mark));
    return make("ol", { class: "bars texts" }, ...rows.map(row => {
      const score = row[kind.score], bar = make("span", { class: "bar" });
      bar.style.width = `${Math.max(0, Math.min(1, score || 0)) * 100}%`;
      return make("li", {}, make("span", { class: "name" }, ...highlight(row[kind.text], sent.text, kind.mark)),
        Number.isFinite(score) ? make("span", { class: "score" }, `${(score * 100).toFixed(1)} %`) : null, make("span", { class: "track" }, bar));
    }));
  },
  table(kind, value) {
    if (Array.isArray(value) && value.length && value.every(isObject)) {
      const names = [...new Set(value.flatMap(Object.keys))];
      return table(names, value.map(row => names.map(name => row[name])));
    }
    if (Array.isArray(value) && value.length && value.every(Array.isArray))
      return table(value[0].map((_, index) => String(index)), value);
    if (Array.isArray(value) && value.length) return table(["#", "value"], value.map((each, index) => [index, each]));
    if (!isObject(value)) return null;
    const columns = Object.values(value);
    if (columns.length && columns.every(column => Array.isArray(column) && column.length === columns[0].length))
      return table(Object.keys(value), columns[0].map((_, index) => columns.map(column => column[index])));
    return table(["name", "value"], Object.entries(value));
  },
};

async function boxes(kind, rows, sent) {
  if (!Array.isArray(rows) || !sent.picture || !rows.every(isObject)) return null;
  const shown = await overlay(kind, rows, sent.picture);
  if (shown && !rows.length) shown.prepend(make("p", { class: "empty" }, "Nothing was found in this picture."));
  return shown;
}

/** Read a string by a pattern such as "{score}:{index}:{label}". The last field takes the rest of the string. */
function fromRow(pattern, row) {
  if (!pattern || typeof row !== "string") return null;
  const names = [...pattern.matchAll(/{(\w+)}/g)].map(match => match[1]);
  const separators = pattern.split(/{\w+}/).map(text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const ending = separators.pop();
  const match = row.match(new RegExp(`^${separators.map((text, index) => `${text}(${index === separators.length - 1 ? ".*" : ".*?"})`).join("")}${ending}$`, "s"));
  if (!match) return null;
  const fields = Object.fromEntries(names.map((name, index) => [name, match[index + 1]]));
  return [fields.label, Number(fields.score)];
}

/** The text, with a <mark> around what replaces each mark of the sent text. */
function highlight(text, sent, mark) {
  if (!mark || !sent || !sent.includes(mark)) return [text];
  const parts = sent.split(mark), nodes = [];
  let at = 0;
  for (const [index, part] of parts.entries()) {
    const known = index ? part : part.trimEnd();
    const found = index === parts.length - 1 ? text.length - part.length : text.indexOf(part || " ", at);
    if (index === 0) {
      if (!text.startsWith(known)) return [text];
      at = text.startsWith(part) ? part.length : known.length;
      nodes.push(text.slice(0, at));
      continue;
    }
    if (found < at || text.slice(found, found + part.length) !== part) return [text];
    nodes.push(make("mark", {}, text.slice(at, found)), part);
    at = found + part.length;
  }
  return nodes;
}

const MAX_ROWS = 200;
function table(names, rows) {
  const cell = value => (typeof value === "number" ? shortNumber(value) : isObject(value) || Array.isArray(value) ? shorten(JSON.stringify(value)) : String(value ?? ""));
  return make("div", { class: "table", tabindex: 0, role: "region", "aria-label": "The result as a table" },
    make("table", {}, make("thead", {}, make("tr", {}, ...names.map(name => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.slice(0, MAX_ROWS).map(row => make("tr", {}, ...row.map(value => make("td", {}, cell(value))))))),
    rows.length > MAX_ROWS ? make("p", { class: "help" }, `${rows.length - MAX_ROWS} more rows are in the JSON.`) : null);
}
const shorten = text => (text.length > 160 ? `${text.slice(0, 160)}…` : text);

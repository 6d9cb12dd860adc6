// The playground: built from the OpenAPI document of the box, and from nothing else.
import { $, make, milliseconds, prose, save, toBase64 } from "./dom.js";
import { everyField, field, fieldsOf, FieldError, listField, readAll, resolve, writeAll } from "./form.js";
import { buildRequest, code, events, languages, needsFile } from "./request.js";
import { show } from "./results.js";
import { historyTable, stages, waterfall } from "./timing.js";

const HISTORY = 30;
let schemas = {}, clients = [], client = null, records = null, options = [], streaming = null;
let running = null, last = null, history = [];

function call(path, settings = {}) {
  const key = $("key").value;
  return fetch(path, key ? { ...settings, headers: { ...settings.headers, "x-api-key": key } } : settings);
}

// --- what is served

async function start() {
  const ping = await fetch("ping").catch(() => null);
  state(ping?.ok ? "ready" : (await ping?.json().catch(() => null))?.error || "The box does not answer.", ping?.ok);
  const answer = await call("openapi.json"), said = await answer.json();
  $("keying").hidden = answer.ok && !$("key").value;
  if (!answer.ok) return state(said.error, false);
  schemas = said.components.schemas;
  clients = Object.entries(schemas).filter(([name]) => name.endsWith(".Request")).map(([, request]) => ofClient(request));
  clients.push(...await withoutClient());
  const named = location.hash.slice(1);
  $("models").replaceChildren(...clients.map(each =>
    make("button", { type: "button", "data-model": each.name, "aria-pressed": "false", onclick: () => choose(each) }, each.name, each.tensors ? make("small", {}, " tensors") : null)));
  if (clients.length) choose(clients.find(each => each.name === named) || clients[0]);
  else $("summary").textContent = "No model is served.";
}

function state(text, good) {
  $("state").textContent = text;
  $("state").className = `pill ${good ? "good" : "bad"}`;
}

function ofClient(request) {
  const name = request.properties.modelname.const;
  return {
    name,
    summary: request.description || "",
    payload: schemas[name],
    parameters: resolve(request.properties.parameters, schemas),
    kind: request["x-result"] || null,
    contentTypes: request["x-content-types"] || [],
    mainField: request["x-main-field"] || null,
    samples: request["x-samples"] || [],
    streams: Boolean(request["x-streams"]),
    example: request.examples?.[0]?.payload,
    wholeBody: !request["x-main-field"] && (request["x-content-types"] || []).includes("*/*"),
  };
}

/** Models that no client serves take tensors: Triton says which. */
async function withoutClient() {
  const listing = await call("models").then(answer => (answer.ok ? answer.json() : { models: [] })).catch(() => ({ models: [] }));
  const known = new Set(clients.map(each => each.name));
  return listing.models.map(row => ({ name: row.modelName || row.name, client: row.client }))
    .filter(row => !known.has(row.name) && !row.client)
    .map(row => ({ name: row.name, summary: "No client serves this model: it takes tensors.", tensors: true, contentTypes: [], samples: [], kind: { kind: "table", items: "outputs" } }));
}

async function tensorsOf(model) {
  const answer = await call(`v2/models/${encodeURIComponent(model.name)}`), said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  model.inputs = said.inputs;
  const properties = Object.fromEntries(said.inputs.map(({ name, datatype, shape }) => [name, {
    description: `${datatype} [${shape.join(", ")}], -1: any size. Nested lists; the shape follows from them.`,
    examples: [filled(shape.map(size => (size < 0 ? 1 : size)), datatype)],
  }]));
  model.payload = { type: "object", properties, required: Object.keys(properties) };
}

/** A tensor of zeros, if it is small enough to be read. */
function filled(shape, datatype) {
  if (shape.reduce((all, size) => all * size, 1) > 5000) return [];
  const one = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
  return shape.reduceRight((inner, size) => Array.from({ length: size }, () => structuredClone(inner)), one);
}

function shapeOf(value) {
  const shape = [];
  for (; Array.isArray(value); value = value[0]) shape.push(value.length);
  return shape;
}

// --- the form

async function choose(wanted) {
  stop();
  client = wanted;
  window.history.replaceState(null, "", `#${encodeURIComponent(client.name)}`);
  for (const button of $("models").children) button.setAttribute("aria-pressed", String(button.dataset.model === client.name));
  $("summary").replaceChildren(...prose(client.summary));
  clear();
  for (const id of ["payload", "parameters"]) $(id).replaceChildren();
  $("samples").hidden = $("options").hidden = true;
  if (client.tensors && !client.payload) {
    try {
      await tensorsOf(client);
    } catch (error) {
      problem(error.message);
    }
    if (client !== wanted) return;
  }
  const context = { schemas, contentTypes: client.contentTypes, mainField: client.mainField, onFile: () => run() };
  records = client.wholeBody ? wholeBody(context) : listField({ name: "payload", schema: client.payload || {}, path: "payload", context, single: true });
  if (client.tensors) records.element.querySelector(":scope > button")?.remove();
  $("payload").replaceChildren(records.element);
  if (client.example !== undefined) records.write(client.example);
  options = client.parameters?.properties ? fieldsOf(client.parameters, "parameters", { ...context, isParameter: true }) : [];
  writeAll(options, client.kind?.parameters);
  streaming = client.streams ? field("stream", { type: "boolean", default: true, description: "Show the parts of the answer as they come." }, "", false, context) : null;
  $("parameters").replaceChildren(...options.map(each => each.element), ...(streaming ? [streaming.element] : []));
  $("options").hidden = !options.length && !streaming;
  samples();
  view("result");
}

/** The body of a client that reads any content type: JSON, or a file. */
function wholeBody(context) {
  return listField({ name: "payload", path: "payload", context: { ...context, isTyped: true }, single: true, schema: { type: "object", properties: {
    body: { description: "The payload, as JSON." },
    file: { type: "string", contentEncoding: "base64", description: "It is sent as it is, with its content type, instead of the JSON." } } } });
}

function samples() {
  const tiles = client.samples.map(name => {
    const path = `samples/${encodeURIComponent(client.name)}/${encodeURIComponent(name)}`;
    const picture = /\.(jpe?g|png|webp)$/i.test(name) ? make("img", { alt: "" }) : null;
    if (picture) call(path).then(answer => answer.blob()).then(blob => { picture.src = URL.createObjectURL(blob); });
    return make("button", { type: "button", class: "tile", "data-sample": name, onclick: () => useSample(path, name) }, picture || make("span", { class: "glyph", "aria-hidden": "true" }, "{ }"), make("span", {}, name === "payload.json" ? "sample" : name));
  });
  const pictures = tiles.filter(tile => tile.querySelector("img"));
  // Pictures say more than the payload that one of them is in.
  const shown = pictures.length ? pictures : tiles;
  if (!shown.length && client.example !== undefined)
    shown.push(make("button", { type: "button", class: "tile", onclick: () => { records.write(client.example); run(); } }, make("span", { class: "glyph", "aria-hidden": "true" }, "{ }"), make("span", {}, "example")));
  $("samples").hidden = !shown.length;
  $("samples").lastElementChild.replaceChildren(...shown);
}

async function useSample(path, name) {
  clearErrors();
  const answer = await call(path);
  if (!answer.ok) return problem((await answer.json()).error);
  if (name.endsWith(".json")) {
    const payload = await answer.json();
    records.write(client.wholeBody ? { body: payload } : typeof payload === "string" && client.mainField ? { [client.mainField]: payload } : payload);
  } else {
    const type = answer.headers.get("Content-Type").split(";")[0], file = new File([await answer.blob()], name, { type });
    const target = [...everyField(records.fields)].find(each => each.takesFiles);
    if (target) target.write(file);
    else records.write({ [client.mainField || "text"]: await file.text() });
  }
  run();
}

// --- a request

function tensorRequest(given) {
  return { inputs: client.inputs.map(({ name, datatype }) => ({ name, datatype, shape: shapeOf(given[name]), data: given[name] })) };
}

/** A file that is the whole body cannot be one of several records. */
function checkFileIsAlone(given) {
  const index = client.wholeBody && given.length > 1 ? given.findIndex(record => record.file) : -1;
  if (index < 0) return;
  const field = records.fields.find(each => each.path === `payload[${index}].file`);
  throw new FieldError(field, "a file is sent alone: remove it, or the other records");
}

async function run() {
  stop();
  clearErrors();
  let request, given;
  try {
    given = records.read();
    checkFileIsAlone(given);
    const parameters = readAll(options);
    request = await buildRequest(client, client.tensors ? [tensorRequest(given[0])] : given, parameters, streaming?.read());
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    return wrong(error.field, error.message);
  }
  const mine = running = new AbortController(), asked = client;
  busy(true);
  const began = performance.now(), entry = { at: new Date(), model: client.name, request, client, given };
  try {
    const answer = await call(request.path, { method: "POST", headers: request.headers, body: request.body, signal: mine.signal });
    entry.status = answer.status;
    if (answer.ok && answer.headers.get("Content-Type")?.startsWith("text/event-stream")) await readStream(answer, entry, began, mine);
    else entry.said = await parsed(answer);
    entry.ms = performance.now() - began;
    entry.timing = answer.headers.get("Server-Timing");
  } catch (error) {
    entry.ms = performance.now() - began;
    entry.said = { error: mine.signal.aborted ? "stopped" : `the box did not answer: ${error.message}` };
  }
  if (running === mine) {
    running = null;
    busy(false);
  }
  history = [entry, ...history].slice(0, HISTORY);
  $("history").replaceChildren(historyTable(history, again));
  if (asked === client && !mine.signal.aborted) await present(entry);
}

async function parsed(answer) {
  if (answer.headers.get("Content-Type")?.startsWith("image/")) {
    const blob = await answer.blob();
    return { modelname: client.name, result: { image: await toBase64(blob), content_type: blob.type } };
  }
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    return { result: text };
  }
}

/** The parts as they come: texts are joined, the rest is a list. */
async function readStream(answer, entry, began, mine) {
  const words = make("p", { class: "words streaming", "aria-live": "polite" }), parts = [];
  clear();
  reveal();
  $("view-result").replaceChildren(words);
  for await (const { event, data } of events(answer.body)) {
    const said = JSON.parse(data);
    entry.first ??= performance.now() - began;
    if (event === "error") {
      entry.status = 500;
      entry.said = said;
      return;
    }
    const part = said && typeof said === "object" && "modelname" in said && "result" in said ? said.result : said;
    parts.push(part);
    if (running === mine) words.append(typeof part === "string" ? part : `${JSON.stringify(part)}\n`);
  }
  const joined = parts.every(part => typeof part === "string") ? parts.join("") : parts.length === 1 ? parts[0] : parts;
  entry.said = { modelname: entry.model, result: joined, parts };
}

// --- the answer

async function present(entry) {
  last = entry;
  clear();
  const good = entry.status && entry.status < 400;
  reveal();
  $("time").textContent = `${entry.status || "no answer"} in ${milliseconds(entry.ms)}${entry.first ? `, first part after ${milliseconds(entry.first)}` : ""}`;
  $("time").className = good ? "good" : "bad";
  $("answer").textContent = JSON.stringify(entry.said, (_, value) => (typeof value === "string" && value.length > 2000 ? `${value.slice(0, 60)}… (${value.length} characters)` : value), 2);
  $("waterfall").replaceChildren(waterfall(stages(entry.timing, entry.ms)));
  showCode();
  if (!good) return failed(entry.said);
  const shown = await views(entry);
  if (last !== entry) return;
  if (shown) $("view-result").replaceChildren(...shown);
  else view("json");
  reveal();
  if (!shown) $("view-result").replaceChildren(make("p", { class: "empty" }, "This result is shown as JSON."));
}

/** One view for each record; null if none of them has one. */
async function views(entry) {
  if (entry.client.tensors) entry.said.outputs?.forEach(output => { if (output.data?.length > 64) output.shown = output.data.slice(0, 64); });
  const many = entry.given.length > 1 && Array.isArray(entry.said.result);
  const results = entry.client.tensors ? [{ outputs: entry.said.outputs.map(({ name, datatype, shape, data, shown }) => ({ name, datatype, shape: JSON.stringify(shape), data: shown || data })) }] : many ? entry.said.result : [entry.said.result];
  const shown = [];
  for (const [index, result] of results.entries()) {
    const record = entry.given[index] || {}, values = Object.values(record);
    const sent = { picture: values.find(value => value instanceof Blob && value.type.startsWith("image/")) || null, text: values.find(value => typeof value === "string") || "" };
    const one = result?.error && many ? make("p", { class: "error" }, result.error) : await show(entry.client.kind, result, sent);
    if (many) shown.push(make("h3", {}, `Record ${index + 1}`));
    shown.push(one || make("pre", {}, JSON.stringify(result, null, 2)));
    if (!one && !many) return null;
  }
  return shown;
}

/** On a narrow screen the answer is below the form. */
function reveal() {
  const isBelow = $("output").getBoundingClientRect().top > $("form").getBoundingClientRect().top + 100;
  if (isBelow && $("output").getBoundingClientRect().top > innerHeight / 3) $("output").scrollIntoView({ block: "start" });
}

function failed(said) {
  const path = typeof said.field === "string" ? said.field : "";
  const fields = [...everyField([...records.fields, ...options])];
  const exact = fields.find(each => each.path === path);
  const nearest = exact || fields.filter(each => path.startsWith(each.path)).sort((one, other) => other.path.length - one.path.length)[0];
  if (nearest && client === last.client) wrong(nearest, said.error);
  problem(said.error || JSON.stringify(said));
  $("view-result").replaceChildren(make("p", { class: "empty" }, "There is no result."));
}

function wrong(field, message) {
  field.showError(message);
  field.control.focus();
  field.element.scrollIntoView({ block: "nearest" });
}

function problem(text) {
  $("problem").replaceChildren(make("p", { class: "error" }, text));
}

function clearErrors() {
  $("time").textContent = "";
  for (const each of everyField([...(records?.fields || []), ...options])) each.showError("");
  $("problem").replaceChildren();
}

function clear() {
  $("problem").replaceChildren();
  $("time").textContent = "";
  $("answer").textContent = "";
  $("code").textContent = "";
  $("waterfall").replaceChildren();
  $("view-result").replaceChildren(make("p", { class: "empty" }, client?.samples.length || client?.example !== undefined ? "The result appears here. Click a sample to begin." : "The result appears here."));
}

function again(entry) {
  view("result");
  present(entry);
}

function showCode() {
  if (!last) return;
  const origin = new URL(".", location).href;
  $("code").textContent = code($("language").value, last.request, origin, Boolean($("key").value));
  $("save-body").hidden = !needsFile(last.request);
}

// --- the page

function busy(is) {
  $("stop").hidden = !is;
  $("output").setAttribute("aria-busy", String(is));
  $("output").classList.toggle("busy", is);
}

function stop() {
  running?.abort();
  running = null;
  busy(false);
}

const TABS = ["result", "json", "time", "code"];
function view(name) {
  for (const each of TABS) {
    const chosen = each === name;
    $(`view-${each}`).hidden = !chosen;
    $(`tab-${each}`).setAttribute("aria-selected", String(chosen));
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
  }
}

for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => view(name));
$("tab-result").parentElement.addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const at = TABS.findIndex(name => $(`tab-${name}`).getAttribute("aria-selected") === "true");
  const next = TABS[(at + step + TABS.length) % TABS.length];
  view(next);
  $(`tab-${next}`).focus();
});
$("language").append(...languages.map(name => new Option(name, name)));
$("language").addEventListener("change", showCode);
$("copy").addEventListener("click", async () => {
  const selection = getSelection();
  try {
    await navigator.clipboard.writeText($("code").textContent);
  } catch {
    // A page over plain HTTP has no clipboard of its own.
    selection.selectAllChildren($("code"));
    document.execCommand("copy");
    selection.removeAllRanges();
  }
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
});
$("save-json").addEventListener("click", () => last && save("answer.json", JSON.stringify(last.said, null, 1), "application/json"));
$("save-body").addEventListener("click", () => last && save("request.json", last.request.body, "application/json"));
$("stop").addEventListener("click", stop);
$("form").addEventListener("submit", event => {
  event.preventDefault();
  run();
});
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && client) {
    event.preventDefault();
    run();
  }
});
document.addEventListener("paste", event => {
  const file = event.clipboardData?.files[0];
  const target = file && [...everyField(records?.fields || [])].find(each => each.takesFiles);
  if (target) {
    event.preventDefault();
    target.take(file);
  }
});
$("key").addEventListener("change", start);
$("history").replaceChildren(historyTable([]));
start();

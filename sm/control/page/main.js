// The playground. It is built from the box's OpenAPI document; only the tensors of models without a client come from Triton.
import { $, docstringNodes, download, fileName, formatMilliseconds, fromBase64, make, toBase64 } from "./dom.js";
import { createField, FieldError, listField, objectFields, readFields, resolveSchema, walkFields, writeFields } from "./form.js";
import { buildRequest, languages, needsFile, readEvents, requestCode } from "./request.js";
import { isText, showResult } from "./results.js";
import { historyTable, readStages, waterfallChart } from "./timing.js";

const MAX_HISTORY = 30;
const MAX_ZEROS = 5000; // a larger tensor of zeros is not shown in the form
const MAX_SHOWN_VALUES = 64; // of a tensor in the answer
const MAX_SHOWN_CHARACTERS = 2000; // of a text in the JSON view; of a longer one, the first 60
const MAX_TILE_CHARACTERS = 90; // of a sample's text
const COPIED_NOTICE_MS = 1500;
const REFRESH_MS = 5000;

// What the box serves, and the client whose form is shown. A client with a `problem` cannot be run.
let schemas = {}, clients = [], client = null, listedRows = [];
// The form: the field with the records, those of the parameters, and the switch for streaming.
let recordList = null, parameterFields = [], streamField = null;
// A history entry is {sentAt, model, client, request, records, status, ms, firstPartMs, answer, timing}.
let abortController = null, shownEntry = null, history = [];

/** Fetch from the box, with the API key if there is one. */
function fetchWithKey(path, options = {}) {
  const key = $("key").value;
  return fetch(path, key ? { ...options, headers: { ...options.headers, "x-api-key": key } } : options);
}

// --- the models

async function start() {
  await showPing();
  await loadClients(await listModels());
}

async function showPing() {
  const ping = await fetch("ping").catch(() => null);
  showState(ping?.ok ? "ready" : (await ping?.json().catch(() => null))?.error || "The box does not answer.", ping?.ok);
}

/** Show the models of `rows`. The form stays as it is, unless its model has changed. */
async function loadClients(rows) {
  const response = await fetchWithKey("openapi.json"), openapi = await response.json();
  $("key-panel").hidden = response.ok && !$("key").value;
  if (!response.ok) return showState(openapi.error, false);
  schemas = openapi.components.schemas;
  listedRows = rows;
  const described = Object.entries(schemas).filter(([name]) => name.endsWith(".Request")).map(([, schema]) => describeClient(schema));
  const names = new Set(described.map(each => each.name));
  const known = new Map(clients.map(each => [each.identity, each]));
  clients = [...described, ...rows.filter(row => !names.has(row.name) && (!row.client || row.problem)).map(describeModel)].map(each => {
    each.problem = rows.find(row => row.name === each.name)?.problem || "";
    const identity = JSON.stringify(each);
    return known.get(identity) || Object.assign(each, { identity });
  });
  $("models").replaceChildren(...clients.map(each =>
    make("button", { type: "button", "data-model": each.name, "aria-pressed": String(each === client), class: each.problem ? "bad" : "", title: each.problem || undefined, onclick: () => selectClient(each) },
      each.name, each.problem ? make("small", {}, " not ready") : each.tensors ? make("small", {}, " tensors") : null)));
  const nameInAddress = decodeURIComponent(location.hash.slice(1));
  if (!clients.length) $("summary").textContent = "No model is served.";
  else if (!clients.includes(client)) selectClient(clients.find(each => each.name === nameInAddress) || clients[0]);
}

/** Look for models that came, went, broke or became ready. */
async function refresh() {
  if (document.hidden || $("key-panel").hidden === false) return;
  const rows = await listModels();
  if (JSON.stringify(rows) === JSON.stringify(listedRows)) return;
  await showPing();
  await loadClients(rows);
}

function showState(text, isGood) {
  $("state").textContent = text;
  $("state").className = `pill ${isGood ? "good" : "bad"}`;
}

function describeClient(requestSchema) {
  const name = requestSchema.properties.modelname.const;
  return {
    name,
    summary: requestSchema.description || "",
    payload: schemas[name],
    parameters: resolveSchema(requestSchema.properties.parameters, schemas),
    kind: requestSchema["x-result"] || null,
    contentTypes: requestSchema["x-content-types"] || [],
    mainField: requestSchema["x-main-field"] || null,
    samples: requestSchema["x-samples"] || [],
    streams: Boolean(requestSchema["x-streams"]),
    example: requestSchema.examples?.[0]?.payload,
    wholeBody: !requestSchema["x-main-field"] && (requestSchema["x-content-types"] || []).includes("*/*"),
  };
}

/** Return the box's models, each with the problem for which it cannot be run; those of before if the box does not answer. */
async function listModels() {
  const listing = await fetchWithKey("models").then(response => (response.ok ? response.json() : { models: [] })).catch(() => null);
  if (!listing) return listedRows;
  return listing.models.map(row => ({ name: row.modelName, client: row.client, problem: row.ready === false ? row.reason || "Triton does not have the model ready." : "" }));
}

/** A model without a client accepts tensors, which Triton describes. */
function describeModel({ name, problem }) {
  return { name, summary: problem ? "" : "No client serves this model: it takes tensors.", tensors: true, contentTypes: [], samples: [], kind: { kind: "table", items: "outputs" } };
}

/** Ask Triton for the inputs of a model without a client, and describe them as a payload. */
async function loadTensors(model) {
  const response = await fetchWithKey(`v2/models/${encodeURIComponent(model.name)}`), metadata = await response.json();
  if (!response.ok) throw new Error(metadata.error);
  model.inputs = metadata.inputs;
  const properties = Object.fromEntries(metadata.inputs.map(({ name, datatype, shape }) => [name, {
    description: `${datatype} [${shape.join(", ")}], -1: any size. Nested lists; the shape follows from them.`,
    examples: [zeros(shape.map(size => (size < 0 ? 1 : size)), datatype)],
  }]));
  model.payload = { type: "object", properties, required: Object.keys(properties) };
}

/** A tensor of zeros; empty if it would be too large to read. */
function zeros(shape, datatype) {
  if (shape.reduce((product, size) => product * size, 1) > MAX_ZEROS) return [];
  const zero = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
  return shape.reduceRight((inner, size) => Array.from({ length: size }, () => structuredClone(inner)), zero);
}

function shapeOf(value) {
  const shape = [];
  for (; Array.isArray(value); value = value[0]) shape.push(value.length);
  return shape;
}

// --- the form

async function selectClient(selected) {
  stop();
  client = selected;
  recordList = streamField = null;
  parameterFields = [];
  window.history.replaceState(null, "", `#${encodeURIComponent(client.name)}`);
  for (const button of $("models").children) button.setAttribute("aria-pressed", String(button.dataset.model === client.name));
  $("summary").replaceChildren(...docstringNodes(client.summary), ...(client.problem ? [make("strong", { class: "error" }, `${client.name} cannot be run now: ${client.problem}`)] : []));
  $("send").disabled = Boolean(client.problem);
  clearAnswer();
  for (const id of ["payload", "parameters"]) $(id).replaceChildren();
  $("samples").hidden = $("options").hidden = true;
  if (client.tensors && client.problem) return;
  let sample = null;
  try {
    if (client.tensors && !client.payload) await loadTensors(client);
    sample = await firstSample(client);
  } catch (error) {
    if (client !== selected) return;
    showProblem(error.message);
    if (client.tensors) return;
  }
  if (client !== selected) return;
  const context = { schemas, contentTypes: client.contentTypes, mainField: client.mainField, onFile: () => run() };
  recordList = client.wholeBody ? wholeBodyField(context) : listField({ name: "payload", schema: client.payload || {}, path: "payload", context, single: true });
  // Tensors have no records: the button that adds one goes.
  if (client.tensors) recordList.element.querySelector(":scope > button")?.remove();
  $("payload").replaceChildren(recordList.element);
  if (sample) await writeSample(sample);
  else if (client.example !== undefined) recordList.write(client.example);
  parameterFields = client.parameters?.properties ? objectFields(client.parameters, "parameters", { ...context, isParameter: true }) : [];
  writeFields(parameterFields, client.kind?.parameters);
  streamField = client.streams ? createField("stream", { type: "boolean", default: true, description: "Show the parts of the answer as they come." }, "", false, context) : null;
  $("parameters").replaceChildren(...parameterFields.map(field => field.element), ...(streamField ? [streamField.element] : []));
  $("options").hidden = !parameterFields.length && !streamField;
  showSamples();
  showTab("result");
}

/** The body of a client that reads any content type: JSON, or a file. */
function wholeBodyField(context) {
  return listField({ name: "payload", path: "payload", context: { ...context, hasTypeInput: true }, single: true, schema: { type: "object", properties: {
    body: { description: "The payload, as JSON." },
    file: { type: "string", contentEncoding: "base64", description: "It is sent as it is, with its content type, instead of the JSON." } } } });
}

/** The samples that are shown. Pictures only, if there are any: the JSON sample contains one of them. */
function shownSamples({ samples }) {
  const pictures = samples.filter(name => /\.(jpe?g|png|webp)$/i.test(name));
  return pictures.length ? pictures : samples;
}

/** Fetch a sample once. */
async function fetchSample(client, name) {
  const files = client.files ??= new Map();
  if (!files.has(name)) {
    const response = await fetchWithKey(`samples/${encodeURIComponent(client.name)}/${encodeURIComponent(name)}`);
    if (!response.ok) throw new Error((await response.json()).error);
    files.set(name, new File([await response.blob()], name, { type: response.headers.get("Content-Type").split(";")[0] }));
  }
  return files.get(name);
}

const firstSample = async client => (shownSamples(client).length ? fetchSample(client, shownSamples(client)[0]) : null);

function showSamples() {
  const { mainField } = client;
  const shown = shownSamples(client).map(name => {
    const view = make("span", { class: "tile-view" });
    const sample = fetchSample(client, name);
    sample.then(file => tileView(file, mainField)).then(element => view.replaceWith(element), () => {});
    return make("button", { type: "button", class: "tile", onclick: () => runSample(sample) }, view, make("span", {}, name === "payload.json" ? "sample" : name));
  });
  if (!shown.length && client.example !== undefined)
    shown.push(make("button", { type: "button", class: "tile", onclick: () => { recordList.write(client.example); run(); } }, payloadView(client.example, mainField), make("span", {}, "example")));
  $("samples").hidden = !shown.length;
  $("samples").lastElementChild.replaceChildren(...shown);
}

/** Show a sample on its tile: its picture, or the beginning of its text. */
async function tileView(file, mainField) {
  if (file.type.startsWith("image/")) return pictureTile(file);
  if (file.name.endsWith(".json")) return payloadView(JSON.parse(await file.text()), mainField);
  return isText(file.type) ? textTile(await file.slice(0, MAX_TILE_CHARACTERS).text()) : make("span", { class: "glyph", "aria-hidden": "true" }, file.type.startsWith("audio/") ? "♪" : "···");
}

/** Show what a payload has in its main field, or all of it. */
function payloadView(payload, mainField) {
  const values = payload && typeof payload === "object" ? Object.values(payload) : [payload];
  const text = payload?.[mainField] ?? (values.length === 1 ? values[0] : payload);
  try {
    const file = typeof text === "string" && fromBase64(text);
    if (file && file.type.startsWith("image/")) return pictureTile(file);
  } catch { /* It is not base64, but a text. */ }
  return textTile(typeof text === "string" ? text : JSON.stringify(text));
}

const pictureTile = file => make("img", { alt: "", src: URL.createObjectURL(file) });
const textTile = text => make("q", {}, text.slice(0, MAX_TILE_CHARACTERS));

async function runSample(loading) {
  clearErrors();
  try {
    await writeSample(await loading);
  } catch (error) {
    return showProblem(error.message);
  }
  run();
}

/** Put a sample into the form. */
async function writeSample(file) {
  const fileField = firstFileField();
  if (file.name.endsWith(".json")) {
    const payload = JSON.parse(await file.text());
    recordList.write(client.wholeBody ? { body: payload } : typeof payload === "string" && client.mainField ? { [client.mainField]: payload } : payload);
  } else if (fileField) fileField.write(file);
  else recordList.write({ [client.mainField || "text"]: await file.text() });
}

const firstFileField = () => [...walkFields(recordList?.fields || [])].find(field => field.takesFiles);

// --- a request

function tensorRequest(record) {
  return { inputs: client.inputs.map(({ name, datatype }) => ({ name, datatype, shape: shapeOf(record[name]), data: record[name] })) };
}

/** A file that is the whole body cannot be one of several records. */
function checkFileIsAlone(records) {
  const index = client.wholeBody && records.length > 1 ? records.findIndex(record => record.file) : -1;
  if (index < 0) return;
  const field = recordList.fields.find(each => each.path === `payload[${index}].file`);
  throw new FieldError(field, "a file is sent alone: remove it, or the other records");
}

async function run() {
  if (!client || client.problem || !recordList) return;
  stop();
  clearErrors();
  let request, records;
  try {
    records = recordList.read();
    checkFileIsAlone(records);
    const parameters = readFields(parameterFields);
    request = await buildRequest(client, client.tensors ? [tensorRequest(records[0])] : records, parameters, streamField?.read());
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    return showFieldError(error.field, error.message);
  }
  const controller = abortController = new AbortController();
  setBusy(true);
  const startedAt = performance.now(), entry = { sentAt: new Date(), model: client.name, client, request, records };
  try {
    const response = await fetchWithKey(request.path, { method: "POST", headers: request.headers, body: request.body, signal: controller.signal });
    entry.status = response.status;
    if (response.ok && response.headers.get("Content-Type")?.startsWith("text/event-stream")) await readStream(response, entry, startedAt, controller);
    else entry.answer = await parseAnswer(response);
    const type = response.headers.get("Content-Type") || "";
    if (response.ok && !isText(type) && !entry.answer.parts) request.savesAs = fileName("answer", type);
    entry.ms = performance.now() - startedAt;
    entry.timing = response.headers.get("Server-Timing");
  } catch (error) {
    entry.ms = performance.now() - startedAt;
    entry.answer = { error: controller.signal.aborted ? "stopped" : `the box did not answer: ${error.message}` };
  }
  if (abortController === controller) {
    abortController = null;
    setBusy(false);
  }
  history = [entry, ...history].slice(0, MAX_HISTORY);
  $("history").replaceChildren(historyTable(history, showAgain));
  if (entry.client === client && !controller.signal.aborted) await showAnswer(entry);
}

async function parseAnswer(response) {
  const type = response.headers.get("Content-Type") || "";
  if (response.ok && !isText(type)) {
    const blob = await response.blob();
    return { modelname: client.name, result: { [type.startsWith("image/") ? "image" : "body"]: await toBase64(blob), content_type: blob.type } };
  }
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return { result: text };
  }
}

/** Show the parts as they arrive. The result is a joined text, or a list of other parts. */
async function readStream(response, entry, startedAt, controller) {
  const output = make("p", { class: "text-result streaming", "aria-live": "polite" }), parts = [];
  clearAnswer();
  scrollToAnswer();
  $("view-result").replaceChildren(output);
  for await (const { event, data } of readEvents(response.body)) {
    const message = JSON.parse(data);
    entry.firstPartMs ??= performance.now() - startedAt;
    if (event === "error") {
      entry.status = 500;
      entry.answer = message;
      return;
    }
    const part = message && typeof message === "object" && "modelname" in message && "result" in message ? message.result : message;
    parts.push(part);
    if (abortController === controller) output.append(typeof part === "string" ? part : `${JSON.stringify(part)}\n`);
  }
  const result = parts.every(part => typeof part === "string") ? parts.join("") : parts.length === 1 ? parts[0] : parts;
  entry.answer = { modelname: entry.model, result, parts };
}

// --- the answer

async function showAnswer(entry) {
  shownEntry = entry;
  clearAnswer();
  const succeeded = entry.status && entry.status < 400;
  scrollToAnswer();
  $("time").textContent = `${entry.status || "no answer"} in ${formatMilliseconds(entry.ms)}${entry.firstPartMs ? `, first part after ${formatMilliseconds(entry.firstPartMs)}` : ""}`;
  $("time").className = succeeded ? "good" : "bad";
  $("answer").textContent = JSON.stringify(entry.answer, shortenText, 2);
  $("waterfall").replaceChildren(waterfallChart(readStages(entry.timing, entry.ms)));
  showCode();
  if (!succeeded) return showFailure(entry.answer);
  const views = await recordViews(entry);
  if (shownEntry !== entry) return;
  if (views) $("view-result").replaceChildren(...views);
  else showTab("json");
  scrollToAnswer();
  if (!views) $("view-result").replaceChildren(make("p", { class: "empty" }, "This result is shown as JSON."));
}

const shortenText = (_, value) =>
  (typeof value === "string" && value.length > MAX_SHOWN_CHARACTERS ? `${value.slice(0, 60)}… (${value.length} characters)` : value);

/** Return a view for each record; null if a single record has none. */
async function recordViews({ client: { kind, tensors }, records, answer }) {
  const hasMany = records.length > 1 && Array.isArray(answer.result);
  const results = tensors ? [{ outputs: answer.outputs.map(tensorRow) }] : hasMany ? answer.result : [answer.result];
  const views = [];
  for (const [index, result] of results.entries()) {
    const values = Object.values(records[index] || {});
    const sent = { picture: values.find(value => value instanceof Blob && value.type.startsWith("image/")) || null, text: values.find(value => typeof value === "string") || "" };
    const view = result?.error && hasMany ? make("p", { class: "error" }, result.error) : await showResult(kind, result, sent);
    if (!view && !hasMany) return null;
    if (hasMany) views.push(make("h3", {}, `Record ${index + 1}`));
    views.push(view || make("pre", {}, JSON.stringify(result, null, 2)));
  }
  return views;
}

const tensorRow = ({ name, datatype, shape, data }) => ({ name, datatype, shape: JSON.stringify(shape), data: data?.slice(0, MAX_SHOWN_VALUES) });

/** On a narrow screen the answer is below the form, so scroll to it. */
function scrollToAnswer() {
  const isBelow = $("output").getBoundingClientRect().top > $("form").getBoundingClientRect().top + 100;
  if (isBelow && $("output").getBoundingClientRect().top > innerHeight / 3) $("output").scrollIntoView({ block: "start" });
}

/** Show an error, beside its field if it names one, or beside the nearest field around it. */
function showFailure(answer) {
  const path = typeof answer.field === "string" ? answer.field : "";
  const fields = [...walkFields([...recordList.fields, ...parameterFields])];
  const exact = fields.find(field => field.path === path);
  const nearest = exact || fields.filter(field => path.startsWith(field.path)).sort((a, b) => b.path.length - a.path.length)[0];
  if (nearest && client === shownEntry.client) showFieldError(nearest, answer.error);
  showProblem(answer.error || JSON.stringify(answer));
  $("view-result").replaceChildren(make("p", { class: "empty" }, "There is no result."));
}

function showFieldError(field, message) {
  field.showError(message);
  field.control.focus();
  field.element.scrollIntoView({ block: "nearest" });
}

function showProblem(text) {
  $("problem").replaceChildren(make("p", { class: "error" }, text));
}

function clearErrors() {
  $("time").textContent = "";
  for (const field of walkFields([...(recordList?.fields || []), ...parameterFields])) field.showError("");
  $("problem").replaceChildren();
}

function clearAnswer() {
  $("problem").replaceChildren();
  $("time").textContent = "";
  $("answer").textContent = "";
  $("code").textContent = "";
  $("waterfall").replaceChildren();
  $("view-result").replaceChildren(make("p", { class: "empty" }, client?.samples.length || client?.example !== undefined ? "The result appears here. Click a sample to begin." : "The result appears here."));
}

function showAgain(entry) {
  showTab("result");
  showAnswer(entry);
}

function showCode() {
  if (!shownEntry) return;
  const origin = new URL(".", location).href;
  $("code").textContent = requestCode($("language").value, shownEntry.request, origin, Boolean($("key").value));
  $("save-body").hidden = !needsFile(shownEntry.request);
}

// --- the page

function setBusy(isBusy) {
  $("stop").hidden = !isBusy;
  $("output").setAttribute("aria-busy", String(isBusy));
  $("output").classList.toggle("busy", isBusy);
}

function stop() {
  abortController?.abort();
  abortController = null;
  setBusy(false);
}

const TABS = ["result", "json", "time", "code"];
function showTab(selected) {
  for (const name of TABS) {
    const isSelected = name === selected;
    $(`view-${name}`).hidden = !isSelected;
    $(`tab-${name}`).setAttribute("aria-selected", String(isSelected));
    $(`tab-${name}`).tabIndex = isSelected ? 0 : -1;
  }
}

for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => showTab(name));
$("tab-result").parentElement.addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const index = TABS.findIndex(name => $(`tab-${name}`).getAttribute("aria-selected") === "true");
  const next = TABS[(index + step + TABS.length) % TABS.length];
  showTab(next);
  $(`tab-${next}`).focus();
});
$("language").append(...languages.map(name => new Option(name, name)));
$("language").addEventListener("change", showCode);
$("copy").addEventListener("click", async () => {
  const selection = getSelection();
  try {
    await navigator.clipboard.writeText($("code").textContent);
  } catch {
    // A page over plain HTTP may not use the clipboard directly.
    selection.selectAllChildren($("code"));
    document.execCommand("copy");
    selection.removeAllRanges();
  }
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, COPIED_NOTICE_MS);
});
$("save-json").addEventListener("click", () => shownEntry && download("answer.json", JSON.stringify(shownEntry.answer, null, 1), "application/json"));
$("save-body").addEventListener("click", () => shownEntry && download("request.json", shownEntry.request.body, "application/json"));
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
  const fileField = file && firstFileField();
  if (fileField) {
    event.preventDefault();
    fileField.sendFile(file);
  }
});
$("key").addEventListener("change", start);
$("history").replaceChildren(historyTable([]));
start();
setInterval(refresh, REFRESH_MS);

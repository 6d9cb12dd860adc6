// The playground. It is built from the box's OpenAPI document; only the tensors of models without a client come from Triton.
import { $, docstringNodes, download, formatMilliseconds, make, toBase64 } from "./dom.js";
import { createField, FieldError, listField, objectFields, readFields, resolveSchema, walkFields, writeFields } from "./form.js";
import { buildRequest, languages, needsFile, readEvents, requestCode } from "./request.js";
import { showResult } from "./results.js";
import { historyTable, readStages, waterfallChart } from "./timing.js";

const MAX_HISTORY = 30;
const MAX_ZEROS = 5000; // a larger tensor of zeros is not shown in the form
const MAX_SHOWN_VALUES = 64; // of a tensor in the answer
const MAX_SHOWN_CHARACTERS = 2000; // of a text in the JSON view; of a longer one, the first 60
const COPIED_NOTICE_MS = 1500;

// What the box serves, and the client whose form is shown.
let schemas = {}, clients = [], client = null;
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
  const ping = await fetch("ping").catch(() => null);
  showState(ping?.ok ? "ready" : (await ping?.json().catch(() => null))?.error || "The box does not answer.", ping?.ok);
  const response = await fetchWithKey("openapi.json"), openapi = await response.json();
  $("key-panel").hidden = response.ok && !$("key").value;
  if (!response.ok) return showState(openapi.error, false);
  schemas = openapi.components.schemas;
  clients = Object.entries(schemas).filter(([name]) => name.endsWith(".Request")).map(([, schema]) => describeClient(schema));
  clients.push(...await modelsWithoutClient());
  const nameInAddress = location.hash.slice(1);
  $("models").replaceChildren(...clients.map(each =>
    make("button", { type: "button", "data-model": each.name, "aria-pressed": "false", onclick: () => selectClient(each) }, each.name, each.tensors ? make("small", {}, " tensors") : null)));
  if (clients.length) selectClient(clients.find(each => each.name === nameInAddress) || clients[0]);
  else $("summary").textContent = "No model is served.";
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

/** Models without a client accept tensors, which Triton describes. */
async function modelsWithoutClient() {
  const listing = await fetchWithKey("models").then(response => (response.ok ? response.json() : { models: [] })).catch(() => ({ models: [] }));
  const clientNames = new Set(clients.map(each => each.name));
  return listing.models.map(row => ({ name: row.modelName || row.name, client: row.client }))
    .filter(row => !clientNames.has(row.name) && !row.client)
    .map(row => ({ name: row.name, summary: "No client serves this model: it takes tensors.", tensors: true, contentTypes: [], samples: [], kind: { kind: "table", items: "outputs" } }));
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
  window.history.replaceState(null, "", `#${encodeURIComponent(client.name)}`);
  for (const button of $("models").children) button.setAttribute("aria-pressed", String(button.dataset.model === client.name));
  $("summary").replaceChildren(...docstringNodes(client.summary));
  clearAnswer();
  for (const id of ["payload", "parameters"]) $(id).replaceChildren();
  $("samples").hidden = $("options").hidden = true;
  if (client.tensors && !client.payload) {
    try {
      await loadTensors(client);
    } catch (error) {
      showProblem(error.message);
    }
    if (client !== selected) return;
  }
  const context = { schemas, contentTypes: client.contentTypes, mainField: client.mainField, onFile: () => run() };
  recordList = client.wholeBody ? wholeBodyField(context) : listField({ name: "payload", schema: client.payload || {}, path: "payload", context, single: true });
  // Tensors have no records: the button that adds one goes.
  if (client.tensors) recordList.element.querySelector(":scope > button")?.remove();
  $("payload").replaceChildren(recordList.element);
  if (client.example !== undefined) recordList.write(client.example);
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

function showSamples() {
  const jsonGlyph = () => make("span", { class: "glyph", "aria-hidden": "true" }, "{ }");
  const tiles = client.samples.map(name => {
    const path = `samples/${encodeURIComponent(client.name)}/${encodeURIComponent(name)}`;
    const picture = /\.(jpe?g|png|webp)$/i.test(name) ? make("img", { alt: "" }) : null;
    if (picture) fetchWithKey(path).then(response => response.blob()).then(blob => { picture.src = URL.createObjectURL(blob); });
    return make("button", { type: "button", class: "tile", onclick: () => sendSample(path, name) }, picture || jsonGlyph(), make("span", {}, name === "payload.json" ? "sample" : name));
  });
  const pictures = tiles.filter(tile => tile.querySelector("img"));
  // Show pictures only, if there are any: the JSON sample contains one of them.
  const shown = pictures.length ? pictures : tiles;
  if (!shown.length && client.example !== undefined)
    shown.push(make("button", { type: "button", class: "tile", onclick: () => { recordList.write(client.example); run(); } }, jsonGlyph(), make("span", {}, "example")));
  $("samples").hidden = !shown.length;
  $("samples").lastElementChild.replaceChildren(...shown);
}

async function sendSample(path, name) {
  clearErrors();
  const response = await fetchWithKey(path);
  if (!response.ok) return showProblem((await response.json()).error);
  if (name.endsWith(".json")) {
    const payload = await response.json();
    recordList.write(client.wholeBody ? { body: payload } : typeof payload === "string" && client.mainField ? { [client.mainField]: payload } : payload);
  } else {
    const type = response.headers.get("Content-Type").split(";")[0], file = new File([await response.blob()], name, { type });
    const fileField = firstFileField();
    if (fileField) fileField.write(file);
    else recordList.write({ [client.mainField || "text"]: await file.text() });
  }
  run();
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
  if (response.headers.get("Content-Type")?.startsWith("image/")) {
    const blob = await response.blob();
    return { modelname: client.name, result: { image: await toBase64(blob), content_type: blob.type } };
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

// The playground. It is built from the box's OpenAPI document alone.
import { $, make, milliseconds, prose, save, toBase64 } from "./dom.js";
import { everyField, field, fieldsOf, FieldError, listField, readAll, resolve, writeAll } from "./form.js";
import { buildRequest, code, events, languages, needsFile } from "./request.js";
import { show } from "./results.js";
import { historyTable, stages, waterfall } from "./timing.js";

const MAX_HISTORY = 30;
let schemas = {}, clients = [], client = null, records = null, options = [], streaming = null;
let running = null, last = null, history = [];

function call(path, settings = {}) {
  const key = $("key").value;
  return fetch(path, key ? { ...settings, headers: { ...settings.headers, "x-api-key": key } } : settings);
}

// --- the models

async function start() {
  const ping = await fetch("ping").catch(() => null);
  showState(ping?.ok ? "ready" : (await ping?.json().catch(() => null))?.error || "The box does not answer.", ping?.ok);
  const answer = await call("openapi.json"), openapi = await answer.json();
  $("keying").hidden = answer.ok && !$("key").value;
  if (!answer.ok) return showState(openapi.error, false);
  schemas = openapi.components.schemas;
  clients = Object.entries(schemas).filter(([name]) => name.endsWith(".Request")).map(([, request]) => describeClient(request));
  clients.push(...await modelsWithoutClient());
  const named = location.hash.slice(1);
  $("models").replaceChildren(...clients.map(each =>
    make("button", { type: "button", "data-model": each.name, "aria-pressed": "false", onclick: () => choose(each) }, each.name, each.tensors ? make("small", {}, " tensors") : null)));
  if (clients.length) choose(clients.find(each => each.name === named) || clients[0]);
  else $("summary").textContent = "No model is served.";
}

function showState(text, good) {
  $("state").textContent = text;
  $("state").className = `pill ${good ? "good" : "bad"}`;
}

function describeClient(request) {
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

/** Models without a client accept tensors, which Triton describes. */
async function modelsWithoutClient() {
  const listing = await call("models").then(answer => (answer.ok ? answer.json() : { models: [] })).catch(() => ({ models: [] }));
  const known = new Set(clients.map(each => each.name));
  return listing.models.map(row => ({ name: row.modelName || row.name, client: row.client }))
    .filter(row => !known.has(row.name) && !row.client)
    .map(row => ({ name: row.name, summary: "No client serves this model: it takes tensors.", tensors: true, contentTypes: [], samples: [], kind: { kind: "table", items: "outputs" } }));
}

async function loadTensors(model) {
  const answer = await call(`v2/models/${encodeURIComponent(model.name)}`), said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  model.inputs = said.inputs;
  const properties = Object.fromEntries(said.inputs.map(({ name, datatype, shape }) => [name, {
    description: `${datatype} [${shape.join(", ")}], -1: any size. Nested lists; the shape follows from them.`,
    examples: [zeros(shape.map(size => (size < 0 ? 1 : size)), datatype)],
  }]));
  model.payload = { type: "object", properties, required: Object.keys(properties) };
}

/** A tensor of zeros; empty if it would be too large to read. */
function zeros(shape, datatype) {
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
  clearAnswer();
  for (const id of ["payload", "parameters"]) $(id).replaceChildren();
  $("samples").hidden = $("options").hidden = true;
  if (client.tensors && !client.payload) {
    try {
      await loadTensors(client);
    } catch (error) {
      showProblem(error.message);
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
  showSamples();
  showTab("result");
}

/** The body of a client that reads any content type: JSON, or a file. */
function wholeBody(context) {
  return listField({ name: "payload", path: "payload", context: { ...context, isTyped: true }, single: true, schema: { type: "object", properties: {
    body: { description: "The payload, as JSON." },
    file: { type: "string", contentEncoding: "base64", description: "It is sent as it is, with its content type, instead of the JSON." } } } });
}

function showSamples() {
  const tiles = client.samples.map(name => {
    const path = `samples/${encodeURIComponent(client.name)}/${encodeURIComponent(name)}`;
    const picture = /\.(jpe?g|png|webp)$/i.test(name) ? make("img", { alt: "" }) : null;
    if (picture) call(path).then(answer => answer.blob()).then(blob => { picture.src = URL.createObjectURL(blob); });
    return make("button", { type: "button", class: "tile", "data-sample": name, onclick: () => useSample(path, name) }, picture || make("span", { class: "glyph", "aria-hidden": "true" }, "{ }"), make("span", {}, name === "payload.json" ? "sample" : name));
  });
  const pictures = tiles.filter(tile => tile.querySelector("img"));
  // Show pictures only, if there are any: the JSON sample contains one of them.
  const shown = pictures.length ? pictures : tiles;
  if (!shown.length && client.example !== undefined)
    shown.push(make("button", { type: "button", class: "tile", onclick: () => { records.write(client.example); run(); } }, make("span", { class: "glyph", "aria-hidden": "true" }, "{ }"), make("span", {}, "example")));
  $("samples").hidden = !shown.length;
  $("samples").lastElementChild.replaceChildren(...shown);
}

async function useSample(path, name) {
  clearErrors();
  const answer = await call(path);
  if (!answer.ok) return showProblem((await answer.json()).error);
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
    return showFieldError(error.field, error.message);
  }
  const mine = running = new AbortController(), asked = client;
  setBusy(true);
  const began = performance.now(), entry = { at: new Date(), model: client.name, request, client, given };
  try {
    const answer = await call(request.path, { method: "POST", headers: request.headers, body: request.body, signal: mine.signal });
    entry.status = answer.status;
    if (answer.ok && answer.headers.get("Content-Type")?.startsWith("text/event-stream")) await readStream(answer, entry, began, mine);
    else entry.said = await parseAnswer(answer);
    entry.ms = performance.now() - began;
    entry.timing = answer.headers.get("Server-Timing");
  } catch (error) {
    entry.ms = performance.now() - began;
    entry.said = { error: mine.signal.aborted ? "stopped" : `the box did not answer: ${error.message}` };
  }
  if (running === mine) {
    running = null;
    setBusy(false);
  }
  history = [entry, ...history].slice(0, MAX_HISTORY);
  $("history").replaceChildren(historyTable(history, showAgain));
  if (asked === client && !mine.signal.aborted) await showAnswer(entry);
}

async function parseAnswer(answer) {
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

/** Show the parts as they arrive. The result is a joined text, or a list of other parts. */
async function readStream(answer, entry, began, mine) {
  const words = make("p", { class: "words streaming", "aria-live": "polite" }), parts = [];
  clearAnswer();
  scrollToAnswer();
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

async function showAnswer(entry) {
  last = entry;
  clearAnswer();
  const good = entry.status && entry.status < 400;
  scrollToAnswer();
  $("time").textContent = `${entry.status || "no answer"} in ${milliseconds(entry.ms)}${entry.first ? `, first part after ${milliseconds(entry.first)}` : ""}`;
  $("time").className = good ? "good" : "bad";
  $("answer").textContent = JSON.stringify(entry.said, (_, value) => (typeof value === "string" && value.length > 2000 ? `${value.slice(0, 60)}… (${value.length} characters)` : value), 2);
  $("waterfall").replaceChildren(waterfall(stages(entry.timing, entry.ms)));
  showCode();
  if (!good) return showFailure(entry.said);
  const shown = await recordViews(entry);
  if (last !== entry) return;
  if (shown) $("view-result").replaceChildren(...shown);
  else showTab("json");
  scrollToAnswer();
  if (!shown) $("view-result").replaceChildren(make("p", { class: "empty" }, "This result is shown as JSON."));
}

/** Return a view for each record; null if a single record has none. */
async function recordViews(entry) {
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

/** On a narrow screen the answer is below the form, so scroll to it. */
function scrollToAnswer() {
  const isBelow = $("output").getBoundingClientRect().top > $("form").getBoundingClientRect().top + 100;
  if (isBelow && $("output").getBoundingClientRect().top > innerHeight / 3) $("output").scrollIntoView({ block: "start" });
}

function showFailure(said) {
  const path = typeof said.field === "string" ? said.field : "";
  const fields = [...everyField([...records.fields, ...options])];
  const exact = fields.find(each => each.path === path);
  const nearest = exact || fields.filter(each => path.startsWith(each.path)).sort((one, other) => other.path.length - one.path.length)[0];
  if (nearest && client === last.client) showFieldError(nearest, said.error);
  showProblem(said.error || JSON.stringify(said));
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
  for (const each of everyField([...(records?.fields || []), ...options])) each.showError("");
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
  if (!last) return;
  const origin = new URL(".", location).href;
  $("code").textContent = code($("language").value, last.request, origin, Boolean($("key").value));
  $("save-body").hidden = !needsFile(last.request);
}

// --- the page

function setBusy(isBusy) {
  $("stop").hidden = !isBusy;
  $("output").setAttribute("aria-busy", String(isBusy));
  $("output").classList.toggle("busy", isBusy);
}

function stop() {
  running?.abort();
  running = null;
  setBusy(false);
}

const TABS = ["result", "json", "time", "code"];
function showTab(name) {
  for (const each of TABS) {
    const chosen = each === name;
    $(`view-${each}`).hidden = !chosen;
    $(`tab-${each}`).setAttribute("aria-selected", String(chosen));
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
  }
}

for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => showTab(name));
$("tab-result").parentElement.addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const at = TABS.findIndex(name => $(`tab-${name}`).getAttribute("aria-selected") === "true");
  const next = TABS[(at + step + TABS.length) % TABS.length];
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

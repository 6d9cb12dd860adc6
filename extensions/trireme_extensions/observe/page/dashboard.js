// The dashboard: it gets new points from the box every few seconds, and keeps the last hour.
// A point has the numbers of a few seconds: {at, seconds, all, models, memory, shared_memory}, as the OpenAPI document describes.
import { Chart } from "./charts.js";
import { $, make } from "./dom.js";

const HISTORY_S = 3600, FIRST_INTERVAL_MS = 5000, TIMEOUT_MS = 10000, MIN_RANGE_S = 60, MAX_LINES = 8, MAX_EVENTS = 100;
const OTHERS = "other models", NO_MODEL = "-"; // the name of requests that name no model
const MIN_LATENCY_MS = 0.01; // a logarithmic axis has no zero
const GAP_INTERVALS = 2.5; // points further apart have a gap between them
const STATUS_CLASSES = ["2xx", "3xx", "4xx", "5xx"];
// What the box sent; `box` has its last state.
let points = [], events = [], box = null;
// The next fetch; `failure` says why the last one failed.
let intervalMs = FIRST_INTERVAL_MS, timer = 0, isPaused = false, isUpdating = false, failure = "";

const formatRate = value => (value >= 100 ? String(Math.round(value)) : value >= 1 ? value.toFixed(1) : String(Number(value.toFixed(2))));
const formatPerSecond = value => `${formatRate(value)}/s`;
const formatDuration = value => (value >= 1000 ? `${Number((value / 1000).toPrecision(3))} s` : `${Number(value.toPrecision(3))} ms`);
const formatCount = value => String(Math.round(value * 100) / 100);
const formatShare = value => `${Number(value.toPrecision(value >= 100 ? 3 : 2))} %`;
const formatBytes = value => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let step = 0;
  for (; Math.abs(value) >= 1000 && step < units.length - 1; step++) value /= 1000;
  return `${value >= 100 || step === 0 ? Math.round(value) : Number(value.toPrecision(2))} ${units[step]}`;
};
const atLeast = (low, value) => (typeof value === "number" ? Math.max(low, value) : null);
const modelTitle = name => (name === NO_MODEL ? "no model" : name);
const formatTime = unixTime => new Date(unixTime * 1000).toLocaleTimeString([], { hourCycle: "h23" });

const charts = {
  models: new Chart("Requests per second by model", formatRate),
  classes: new Chart("Requests per second by status", formatRate),
  latency: new Chart("Latency", formatDuration, { logarithmic: true }),
  load: new Chart("In flight and queue", formatCount),
  stages: new Chart("Where the time goes: stages", formatShare, { stacked: true }),
  memory: new Chart("Memory", formatBytes),
};
$("charts").append(...Object.values(charts).map(chart => chart.figure));

// --- points from the box

async function update() {
  if (isUpdating || isPaused || document.hidden) return;
  isUpdating = true;
  clearTimeout(timer);
  try {
    const key = $("key").value;
    const response = await fetch(`dashboard/data?since=${points.at(-1)?.at ?? 0}`, { headers: key ? { "x-api-key": key } : {}, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    const data = await response.json().catch(() => ({ error: `The box answers ${response.status}.` }));
    if ([401, 403].includes(response.status) || key) $("key-panel").hidden = response.ok && !key;
    if (!response.ok) throw new Error(data.error);
    addPoints(data);
    failure = "";
  } catch (error) {
    // If the box does not answer, the charts stay.
    failure = error instanceof TypeError || error.name === "TimeoutError" ? "The box does not answer." : error.message;
  } finally {
    isUpdating = false;
    show();
    timer = setTimeout(update, intervalMs);
  }
}

function addPoints(data) {
  box = data.box;
  events = data.events.slice(-MAX_EVENTS);
  intervalMs = data.interval_seconds * 1000;
  points.push(...data.points.filter(point => point.at > (points.at(-1)?.at ?? 0)));
  points = points.filter(point => point.at > box.at - HISTORY_S);
}

// --- what is shown

function show() {
  $("state").textContent = failure ? `${failure}${box ? ` Seen last at ${formatTime(box.at)}.` : ""}` : box.ready ? "ready" : box.reason;
  $("state").className = `pill ${box?.ready && !failure ? "good" : "bad"}`;
  if (!box) return;
  offerModels();
  showTiles();
  showCharts();
  showModels();
  showRequests();
  showOwnMetrics();
  showProcesses();
  $("events").replaceChildren(...(events.length ? [...events].reverse().map(event => make("li", {}, make("time", {}, formatTime(event.at)), event.text)) : [make("li", {}, "Nothing has changed since the box started.")]));
}

/** Offer every model that has points, also one that is unloaded. */
function offerModels() {
  const names = [...new Set([...box.models.map(model => model.name), ...points.flatMap(point => Object.keys(point.models))])].sort();
  const offered = [...$("model").options].slice(1).map(option => option.value);
  if (JSON.stringify(offered) === JSON.stringify(names)) return;
  const selected = $("model").value;
  $("model").replaceChildren(make("option", { value: "" }, "all models"), ...names.map(name => make("option", { value: name }, modelTitle(name))));
  $("model").value = names.includes(selected) ? selected : "";
}

const sumOf = numbers => Object.values(numbers ?? {}).reduce((sum, number) => sum + number, 0);
const failuresOf = answers => (answers?.["4xx"] ?? 0) + (answers?.["5xx"] ?? 0);

function showTiles() {
  const { all, seconds } = box.last_minute, period = seconds || 1, requests = sumOf(all.answers);
  const memory = box.processes.reduce((sum, process) => sum + process.memory, 0);
  const restarts = box.processes.reduce((sum, process) => sum + process.restarts, 0);
  const tiles = [
    ["Requests", formatPerSecond(requests / period)],
    ["Errors", requests ? `${Number(((100 * failuresOf(all.answers)) / requests).toPrecision(2))} %` : "–", failuresOf(all.answers) > 0],
    ["p50", all.p50_ms === null ? "–" : formatDuration(all.p50_ms)],
    ["p99", all.p99_ms === null ? "–" : formatDuration(all.p99_ms)],
    ["In flight", String(all.in_flight)],
    ["In the queue", String(all.queue), all.queue > 0],
    ["Memory", formatBytes(memory)],
    ["Shared memory", formatBytes(box.shared_memory.used)],
    ...box.gpus.map((gpu, index) => [`GPU ${index}`, `${Math.round(100 * (gpu.utilization ?? 0))} %, ${formatBytes(gpu.memory_used ?? 0)}`]),
    ["Restarts", String(restarts), restarts > 0],
    ...(box.captures ? [["Payload capture", "on"]] : []),
  ];
  $("tiles").replaceChildren(...tiles.map(([name, value, isBad]) => make("div", {}, make("dt", {}, name), make("dd", { class: isBad ? "bad" : "" }, value))));
}

/** Return the points of a range. Where points are missing, because the box stood still or this page was hidden, there is a gap. */
function pointsWithGaps(range) {
  const shown = [];
  for (const point of points) {
    if (point.at < range[0]) continue;
    const previous = shown.at(-1);
    if (previous && point.at - previous.at > GAP_INTERVALS * point.seconds) shown.push({ at: previous.at + point.seconds, gap: true });
    shown.push(point);
  }
  return shown;
}

function showCharts() {
  const model = $("model").value, firstTime = points[0]?.at ?? box.at;
  // The charts of a young box show all of its time.
  const range = [Math.max(box.at - Number($("range").value), Math.min(firstTime, box.at - MIN_RANGE_S)), box.at], shown = pointsWithGaps(range);
  const times = shown.map(point => point.at);
  const line = (name, colour, valueOf) => ({ name, colour, values: shown.map(point => (point.gap ? null : valueOf(point) ?? null)) });
  const numbersOf = point => (model ? point.models[model] : point.all);
  const rateOf = (number, point) => number / (point.seconds || 1);
  const draw = (chart, lines) => chart.show(times, lines, events, range);

  const busiest = namesBySum(shown, point => Object.entries(point.models).map(([name, each]) => [name, sumOf(each.answers)])).filter(name => !model || name === model);
  const lines = busiest.slice(0, MAX_LINES).sort().map((name, index) => line(modelTitle(name), `--c${index}`, point => rateOf(sumOf(point.models[name]?.answers), point)));
  const others = busiest.slice(MAX_LINES);
  if (others.length) lines.push(line(OTHERS, "--c8", point => rateOf(others.reduce((sum, name) => sum + sumOf(point.models[name]?.answers), 0), point)));
  draw(charts.models, lines);

  const classes = STATUS_CLASSES.filter(name => shown.some(point => numbersOf(point)?.answers?.[name]));
  draw(charts.classes, classes.map(name => line(name, `--class${name[0]}`, point => rateOf(numbersOf(point)?.answers[name] ?? 0, point))));
  draw(charts.latency, ["p50", "p95", "p99"].map((name, index) => line(name, `--c${index}`, point => atLeast(MIN_LATENCY_MS, numbersOf(point)?.[`${name}_ms`]))));
  draw(charts.load, [
    line(model ? "threads at work" : "in flight", "--c0", point => (model ? numbersOf(point)?.threads ?? 0 : numbersOf(point).in_flight)),
    line("queue", "--c2", point => numbersOf(point)?.queue ?? 0),
  ]);

  const stagesOf = point => addStages(model ? [point.models[model]] : Object.values(point.models ?? {}));
  const stages = namesBySum(shown, point => Object.entries(stagesOf(point))).slice(0, MAX_LINES).sort();
  draw(charts.stages, stages.map((name, index) => line(name, `--c${index}`, point => {
    const times = stagesOf(point), sum = sumOf(times);
    return sum ? (100 * (times[name] ?? 0)) / sum : null;
  })));

  const groups = namesBySum(shown, point => Object.entries(point.memory ?? {})).slice(0, MAX_LINES - 1).sort();
  draw(charts.memory, [
    ...groups.map((name, index) => line(name, `--c${index}`, point => point.memory[name])),
    line("shared memory", "--c7", point => point.shared_memory),
  ]);
}

/** Return the milliseconds of each stage, added up over models. */
function addStages(models) {
  const sums = {};
  for (const model of models) for (const [name, milliseconds] of Object.entries(model?.stages_ms ?? {})) sums[name] = (sums[name] ?? 0) + milliseconds;
  return sums;
}

/** Return the names of the points' numbers, the largest sum first. `entriesOf` returns a point's [name, number] pairs. */
function namesBySum(shown, entriesOf) {
  const sums = new Map();
  for (const point of shown) if (!point.gap) for (const [name, number] of entriesOf(point)) sums.set(name, (sums.get(name) ?? 0) + number);
  return [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a) || a.localeCompare(b));
}

/** Show what is served, the model first that was used last. */
function showModels() {
  const models = [...box.models].sort((a, b) => (b.used ?? 0) - (a.used ?? 0) || a.name.localeCompare(b.name));
  fillTable("models-table", ["Model", "Version", "Engine", "Source", "Size", "Last used", "State"], models.map(model => [
    [model.name], [[model.versions.join(", "), model.revision].filter(Boolean).join(" · ") || "–"], [model.engine || "–"], [model.source || "–", "reason"],
    [formatBytes(model.bytes), "number"], [model.used ? formatTime(model.used) : "–", "number"],
    [model.reason ? `${model.state}: ${model.reason}` : model.state, ({ ready: "good", "not ready": "bad" }[model.state] ?? "") + (model.reason ? " reason" : "")],
  ]));
}

function showRequests() {
  const { models, seconds } = box.last_minute, period = seconds || 1;
  const names = Object.keys(models).sort((a, b) => sumOf(models[b]?.answers) - sumOf(models[a]?.answers) || a.localeCompare(b));
  fillTable("requests-table", ["Model", "Rate", "p50", "p95", "p99", "Errors", "In flight", "Queue"], names.map(name => {
    const numbers = models[name];
    const durationCell = value => [value === null || value === undefined ? "–" : formatDuration(value), "number"];
    return [
      [modelTitle(name)], [formatPerSecond(sumOf(numbers?.answers) / period), "number"], durationCell(numbers?.p50_ms), durationCell(numbers?.p95_ms), durationCell(numbers?.p99_ms),
      [String(failuresOf(numbers?.answers)), failuresOf(numbers?.answers) ? "number bad" : "number"], [String(numbers?.threads ?? 0), "number"], [String(numbers?.queue ?? 0), "number"],
    ];
  }));
}

/** Show what clients count themselves; a box without such clients has no table. */
function showOwnMetrics() {
  $("own").hidden = !box.own_metrics.length;
  const numberCell = value => [value === null ? "–" : formatCount(value), "number"];
  fillTable("own-table", ["Metric", "Labels", "Model", "Kind", "Value", "Last minute", "Mean"], box.own_metrics.map(row => [
    [row.name], [Object.entries(row.labels).map(label => label.join("=")).join(", ") || "–"], [modelTitle(row.model)], [row.kind],
    numberCell(row.value), numberCell(row.last_minute), numberCell(row.mean),
  ]));
}

function showProcesses() {
  fillTable("processes-table", ["Process", "State", "Processes", "Memory", "Restarts"], box.processes.map(process => {
    const state = process.stopped ? `${process.state}, ${process.stopped} stopped` : process.state;
    return [
      [process.name], [state, process.state === "ready" && !process.stopped ? "good" : "bad"], [String(process.processes), "number"],
      [formatBytes(process.memory), "number"], [String(process.restarts), process.restarts ? "number bad" : "number"],
    ];
  }));
}

/** Fill a table. A cell is [text, class]; the first of a row is its heading. */
function fillTable(id, headings, rows) {
  const head = make("tr", {}, ...headings.map((name, index) => make("th", { scope: "col", class: rows[0]?.[index]?.[1]?.includes("number") ? "number" : "" }, name)));
  const body = rows.map(row => make("tr", {}, ...row.map(([text, cssClass], index) => (index ? make("td", { class: cssClass ?? "" }, text) : make("th", { scope: "row" }, text)))));
  $(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

// --- controls

$("range").onchange = $("model").onchange = () => box && showCharts();
$("key").onchange = update;
$("pause").onclick = () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  $("pause").textContent = isPaused ? "Go on" : "Pause";
  update();
};
document.addEventListener("visibilitychange", update);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => box && showCharts());
update();

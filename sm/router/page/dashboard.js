// The dashboard: it gets new points from the box every few seconds, and keeps the last hour.
import { Chart } from "./charts.js";
import { $, make } from "./dom.js";

const HISTORY_S = 3600, FIRST_INTERVAL_MS = 5000, TIMEOUT_MS = 10000, MIN_RANGE_S = 60, MAX_LINES = 8, MAX_EVENTS = 100;
const OTHERS = "other models", NO_MODEL = { "-": "no model" };
const CLASSES = ["2xx", "3xx", "4xx", "5xx"];
let points = [], events = [], box = null, intervalMs = FIRST_INTERVAL_MS, paused = false, timer = 0, updating = false, failure = "";

const rate = value => (value >= 100 ? String(Math.round(value)) : value >= 1 ? value.toFixed(1) : String(Number(value.toFixed(2))));
const perSecond = value => `${rate(value)}/s`;
const duration = value => (value >= 1000 ? `${Number((value / 1000).toPrecision(3))} s` : `${Number(value.toPrecision(3))} ms`);
const count = value => String(Math.round(value * 100) / 100);
const share = value => `${Number(value.toPrecision(value >= 100 ? 3 : 2))} %`;
const bytes = value => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let step = 0;
  for (; Math.abs(value) >= 1000 && step < units.length - 1; step++) value /= 1000;
  return `${value >= 100 || step === 0 ? Math.round(value) : Number(value.toPrecision(2))} ${units[step]}`;
};
const title = name => NO_MODEL[name] ?? name;
const time = at => new Date(at * 1000).toLocaleTimeString([], { hourCycle: "h23" });

const charts = {
  models: new Chart("Requests per second by model", rate),
  classes: new Chart("Requests per second by status", rate),
  latency: new Chart("Latency", duration),
  load: new Chart("In flight and queue", count),
  stages: new Chart("Where the time goes: stages", share, { stacked: true }),
  memory: new Chart("Memory", bytes),
};
$("charts").append(...Object.values(charts).map(chart => chart.figure));

// --- points from the box

async function update() {
  if (updating || paused || document.hidden) return;
  updating = true;
  clearTimeout(timer);
  try {
    const key = $("key").value;
    const answer = await fetch(`dashboard/data?since=${points.at(-1)?.at ?? 0}`, { headers: key ? { "x-api-key": key } : {}, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    const data = await answer.json().catch(() => ({ error: `The box answers ${answer.status}.` }));
    if ([401, 403].includes(answer.status) || key) $("keying").hidden = answer.ok && !key;
    if (!answer.ok) throw new Error(data.error);
    addPoints(data);
    failure = "";
  } catch (error) {
    // If the box does not answer, the charts stay.
    failure = error instanceof TypeError || error.name === "TimeoutError" ? "The box does not answer." : error.message;
  } finally {
    updating = false;
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
  const good = box?.ready && !failure;
  $("state").textContent = failure ? `${failure}${box ? ` Seen last at ${time(box.at)}.` : ""}` : box.ready ? "ready" : box.reason;
  $("state").className = `pill ${good ? "good" : "bad"}`;
  if (!box) return;
  offerModels();
  showTiles();
  showCharts();
  showModels();
  showProcesses();
  $("events").replaceChildren(...(events.length ? [...events].reverse().map(event => make("li", {}, make("time", {}, time(event.at)), event.text)) : [make("li", {}, "Nothing has changed since the box started.")]));
}

/** Offer every model that has points, also one that is unloaded. */
function offerModels() {
  const names = [...new Set([...box.models.map(model => model.name), ...points.flatMap(point => Object.keys(point.models))])].sort();
  const now = [...$("model").options].slice(1).map(option => option.value);
  if (JSON.stringify(now) === JSON.stringify(names)) return;
  const chosen = $("model").value;
  $("model").replaceChildren(make("option", { value: "" }, "all models"), ...names.map(name => make("option", { value: name }, title(name))));
  $("model").value = names.includes(chosen) ? chosen : "";
}

const total = numbers => Object.values(numbers ?? {}).reduce((all, number) => all + number, 0);
const failures = answers => (answers?.["4xx"] ?? 0) + (answers?.["5xx"] ?? 0);

function showTiles() {
  const { all, seconds } = box.last_minute, period = seconds || 1, asked = total(all.answers);
  const memory = box.processes.reduce((sum, each) => sum + each.memory, 0);
  const restarts = box.processes.reduce((sum, each) => sum + each.restarts, 0);
  const tiles = [
    ["Requests", perSecond(asked / period)],
    ["Errors", asked ? `${Number(((100 * failures(all.answers)) / asked).toPrecision(2))} %` : "–", failures(all.answers) > 0],
    ["p50", all.p50_ms === null ? "–" : duration(all.p50_ms)],
    ["p99", all.p99_ms === null ? "–" : duration(all.p99_ms)],
    ["In flight", String(all.in_flight)],
    ["In the queue", String(all.queue), all.queue > 0],
    ["Memory", bytes(memory)],
    ["Shared memory", bytes(box.shared_memory.used)],
    ["Restarts", String(restarts), restarts > 0],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, value, bad]) => make("div", {}, make("dt", {}, name), make("dd", { class: bad ? "bad" : "" }, value))));
}

/** Add a gap to the lines where points are missing: the box stood still, or this page was hidden. */
function timeline(range) {
  const shown = [];
  for (const point of points) {
    if (point.at < range[0]) continue;
    const before = shown.at(-1);
    if (before && point.at - before.at > 2.5 * point.seconds) shown.push({ at: before.at + point.seconds, gap: true });
    shown.push(point);
  }
  return shown;
}

function showCharts() {
  const model = $("model").value, first = points[0]?.at ?? box.at;
  // The charts of a young box show all of its time.
  const range = [Math.max(box.at - Number($("range").value), Math.min(first, box.at - MIN_RANGE_S)), box.at], shown = timeline(range);
  const times = shown.map(point => point.at);
  const line = (name, variable, value) => ({ name, colour: variable, values: shown.map(point => (point.gap ? null : value(point) ?? null)) });
  const numbersOf = point => (model ? point.models[model] : point.all);
  const rateOf = (number, point) => number / (point.seconds || 1);
  const draw = (chart, lines) => chart.show(times, lines, events, range);

  const busiest = namesBySum(shown, point => Object.entries(point.models).map(([name, each]) => [name, total(each.answers)])).filter(name => !model || name === model);
  const lines = busiest.slice(0, MAX_LINES).sort().map((name, index) => line(title(name), `--c${index}`, point => rateOf(total(point.models[name]?.answers), point)));
  const others = busiest.slice(MAX_LINES);
  if (others.length) lines.push(line(OTHERS, "--c8", point => rateOf(others.reduce((sum, name) => sum + total(point.models[name]?.answers), 0), point)));
  draw(charts.models, lines);

  const classes = CLASSES.filter(name => shown.some(point => numbersOf(point)?.answers?.[name]));
  draw(charts.classes, classes.map(name => line(name, `--class${name[0]}`, point => rateOf(numbersOf(point)?.answers[name] ?? 0, point))));
  draw(charts.latency, ["p50", "p95", "p99"].map((name, index) => line(name, `--c${index}`, point => numbersOf(point)?.[`${name}_ms`])));
  draw(charts.load, [
    line(model ? "threads at work" : "in flight", "--c0", point => (model ? numbersOf(point)?.threads ?? 0 : numbersOf(point).in_flight)),
    line("queue", "--c2", point => numbersOf(point)?.queue ?? 0),
  ]);

  const stagesOf = point => addStages(model ? [point.models[model]] : Object.values(point.models ?? {}));
  const stages = namesBySum(shown, point => Object.entries(stagesOf(point))).slice(0, MAX_LINES).sort();
  draw(charts.stages, stages.map((name, index) => line(name, `--c${index}`, point => {
    const all = stagesOf(point), sum = total(all);
    return sum ? (100 * (all[name] ?? 0)) / sum : null;
  })));

  const groups = namesBySum(shown, point => Object.entries(point.memory ?? {})).slice(0, MAX_LINES - 1).sort();
  draw(charts.memory, [
    ...groups.map((name, index) => line(name, `--c${index}`, point => point.memory[name])),
    line("shared memory", "--c7", point => point.shared_memory),
  ]);
}

function addStages(models) {
  const added = {};
  for (const model of models) for (const [name, milliseconds] of Object.entries(model?.stages_ms ?? {})) added[name] = (added[name] ?? 0) + milliseconds;
  return added;
}

/** Return the names of the points' numbers, the largest sum first. */
function namesBySum(shown, numbers) {
  const sums = new Map();
  for (const point of shown) if (!point.gap) for (const [name, number] of numbers(point)) sums.set(name, (sums.get(name) ?? 0) + number);
  return [...sums.keys()].sort((one, other) => sums.get(other) - sums.get(one) || one.localeCompare(other));
}

function showModels() {
  const { models, seconds } = box.last_minute, period = seconds || 1;
  const served = new Map(box.models.map(model => [model.name, model]));
  const names = [...new Set([...served.keys(), ...Object.keys(models)])].sort((one, other) => total(models[other]?.answers) - total(models[one]?.answers) || one.localeCompare(other));
  table("models-table", ["Model", "Version", "State", "Rate", "p50", "p95", "p99", "Errors", "In flight", "Queue"], names.map(name => {
    const numbers = models[name], model = served.get(name), state = model?.state ?? "not served";
    const milliseconds = value => [value === null || value === undefined ? "–" : duration(value), "number"];
    return [
      [title(name)], [model?.versions.join(", ") || "–"], [model?.reason ? `${state}: ${model.reason}` : state, state === "ready" ? "good" : state === "not ready" ? "bad reason" : ""],
      [perSecond(total(numbers?.answers) / period), "number"], milliseconds(numbers?.p50_ms), milliseconds(numbers?.p95_ms), milliseconds(numbers?.p99_ms),
      [String(failures(numbers?.answers)), failures(numbers?.answers) ? "number bad" : "number"], [String(numbers?.threads ?? 0), "number"], [String(numbers?.queue ?? 0), "number"],
    ];
  }));
}

function showProcesses() {
  table("processes-table", ["Process", "State", "Processes", "Memory", "Restarts"], box.processes.map(each => {
    const state = each.stopped ? `${each.state}, ${each.stopped} stopped` : each.state;
    return [[each.name], [state, each.state === "ready" && !each.stopped ? "good" : "bad"], [String(each.processes), "number"], [bytes(each.memory), "number"], [String(each.restarts), each.restarts ? "number bad" : "number"]];
  }));
}

/** Fill a table. The first cell of a row is its heading; the others are [text, class]. */
function table(id, heads, rows) {
  const head = make("tr", {}, ...heads.map((name, index) => make("th", { scope: "col", class: rows[0]?.[index]?.[1]?.includes("number") ? "number" : "" }, name)));
  const body = rows.map(row => make("tr", {}, ...row.map(([text, style], index) => (index ? make("td", { class: style ?? "" }, text) : make("th", { scope: "row" }, text)))));
  $(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

// --- controls

$("range").onchange = $("model").onchange = () => box && showCharts();
$("key").onchange = update;
$("pause").onclick = () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  update();
};
document.addEventListener("visibilitychange", update);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => box && showCharts());
update();

// Show where a request's time went, by its Server-Timing header, and the last requests.
import { formatMilliseconds, make } from "./dom.js";

const STAGE_ORDER = ["queue", "decode", "preprocess", "infer", "postprocess"];
const STAGE_LABELS = {
  network: "network and browser", queue: "waited for a worker", decode: "read the payload", preprocess: "preprocess",
  infer: "infer (Triton)", postprocess: "postprocess", router: "rest of the router",
};

/** Read the header into [{name, label, ms}], in order. The rest of the time is network. */
export function readStages(header, totalMs) {
  if (!header) return [{ name: "network", label: "all (the box gave no stages)", ms: totalMs }];
  const durations = Object.fromEntries([...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(match => [match[1], Number(match[2])]));
  // A pipeline has a stage for each model that it calls.
  const clientStages = Object.keys(durations).filter(name => name !== "total" && !STAGE_ORDER.includes(name));
  const workerStages = [...STAGE_ORDER.slice(1), ...clientStages].filter(name => name in durations).map(name => ({ name, ms: durations[name] }));
  const workerMs = workerStages.reduce((sum, stage) => sum + stage.ms, 0);
  return [
    { name: "network", ms: Math.max(0, totalMs - durations.total - durations.queue) },
    { name: "queue", ms: durations.queue },
    ...workerStages,
    { name: "router", ms: Math.max(0, durations.total - workerMs) },
  ];
}

/** Show each stage as a bar that begins where the one before it ends. */
export function waterfallChart(stages) {
  const totalMs = stages.reduce((sum, stage) => sum + stage.ms, 0) || 1;
  let startMs = 0;
  return make("ol", { class: "waterfall" }, ...stages.map(({ name, label, ms }) => {
    const bar = make("span", { class: `bar stage-${name.startsWith("infer-") ? "infer" : name}` });
    bar.style.left = `${(startMs / totalMs) * 100}%`;
    bar.style.width = `${Math.max(0.4, (ms / totalMs) * 100)}%`;
    startMs += ms;
    return make("li", {},
      make("span", { class: "name" }, label || STAGE_LABELS[name] || name.replace(/^infer-/, "infer (Triton): ")),
      make("span", { class: "track" }, bar),
      make("span", { class: "score" }, formatMilliseconds(ms)));
  }));
}

/** entries: {sentAt, model, status, ms}, newest first. */
export function historyTable(entries, onShow) {
  if (!entries.length) return make("p", { class: "empty" }, "None yet.");
  const row = (entry, index) => make("tr", {},
    make("td", {}, entry.sentAt.toLocaleTimeString()),
    make("td", {}, entry.model),
    make("td", { class: entry.status >= 400 || !entry.status ? "bad" : "" }, String(entry.status || "–")),
    make("td", {}, formatMilliseconds(entry.ms)),
    make("td", {}, make("button", { type: "button", class: "quiet", "aria-label": `Show request ${entries.length - index} again`, onclick: () => onShow(entry) }, "Show")));
  return make("div", { class: "table", tabindex: 0, role: "region", "aria-label": "The last requests" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...["time", "model", "status", "took", "again"].map(name => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...entries.map(row))));
}

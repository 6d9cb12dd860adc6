// Show where a request's time went, by its Server-Timing header, and the last requests.
import { make, milliseconds } from "./dom.js";

const ORDER = ["queue", "decode", "preprocess", "infer", "postprocess"];
const LABELS = {
  network: "network and browser", queue: "waited for a worker", decode: "read the payload", preprocess: "preprocess",
  infer: "infer (Triton)", postprocess: "postprocess", router: "rest of the router",
};

/** Return [{name, ms}] in order. Time that the header does not have is network. */
export function stages(header, total) {
  if (!header) return [{ name: "network", label: "all (the box gave no stages)", ms: total }];
  const durations = Object.fromEntries([...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(match => [match[1], Number(match[2])]));
  const clientStages = Object.keys(durations).filter(name => name !== "total" && !ORDER.includes(name));
  const workerStages = [...ORDER.slice(1), ...clientStages].filter(name => name in durations).map(name => ({ name, ms: durations[name] }));
  const workerMs = workerStages.reduce((sum, each) => sum + each.ms, 0);
  return [
    { name: "network", ms: Math.max(0, total - durations.total - durations.queue) },
    { name: "queue", ms: durations.queue },
    ...workerStages,
    { name: "router", ms: Math.max(0, durations.total - workerMs) },
  ];
}

export function waterfall(parts) {
  const totalMs = parts.reduce((sum, each) => sum + each.ms, 0) || 1;
  let startMs = 0;
  return make("ol", { class: "waterfall" }, ...parts.map(({ name, label, ms }) => {
    const bar = make("span", { class: `bar of-${name}` });
    bar.style.left = `${(startMs / totalMs) * 100}%`;
    bar.style.width = `${Math.max(0.4, (ms / totalMs) * 100)}%`;
    startMs += ms;
    return make("li", {}, make("span", { class: "name" }, label || LABELS[name] || name), make("span", { class: "track" }, bar), make("span", { class: "score" }, milliseconds(ms)));
  }));
}

/** entries: {at, model, status, ms}, newest first. */
export function historyTable(entries, onChoose) {
  if (!entries.length) return make("p", { class: "empty" }, "None yet.");
  return make("div", { class: "table", tabindex: 0, role: "region", "aria-label": "The last requests" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...["time", "model", "status", "took", "again"].map(name => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...entries.map((entry, index) => make("tr", {},
        make("td", {}, entry.at.toLocaleTimeString()), make("td", {}, entry.model),
        make("td", { class: entry.status >= 400 || !entry.status ? "bad" : "" }, String(entry.status || "–")), make("td", {}, milliseconds(entry.ms)),
        make("td", {}, make("button", { type: "button", class: "quiet", "aria-label": `Show request ${entries.length - index} again`, onclick: () => onChoose(entry) }, "Show")))))));
}

// Where the time of a request went, by its Server-Timing header; and the last requests.
import { make, milliseconds } from "./dom.js";

const ORDER = ["queue", "decode", "preprocess", "infer", "postprocess"];
const SAID = {
  network: "network and browser", queue: "waited for a worker", decode: "read the payload", preprocess: "preprocess",
  infer: "infer (Triton)", postprocess: "postprocess", router: "rest of the router",
};

/** [{name, ms}] in order; what the header does not say is network. */
export function stages(header, total) {
  if (!header) return [{ name: "network", label: "all (the box gave no stages)", ms: total }];
  const given = Object.fromEntries([...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(found => [found[1], Number(found[2])]));
  const own = Object.keys(given).filter(name => name !== "total" && !ORDER.includes(name));
  const inside = [...ORDER.slice(1), ...own].filter(name => name in given).map(name => ({ name, ms: given[name] }));
  const worked = inside.reduce((sum, each) => sum + each.ms, 0);
  return [
    { name: "network", ms: Math.max(0, total - given.total - given.queue) },
    { name: "queue", ms: given.queue },
    ...inside,
    { name: "router", ms: Math.max(0, given.total - worked) },
  ];
}

export function waterfall(parts) {
  const whole = parts.reduce((sum, each) => sum + each.ms, 0) || 1;
  let before = 0;
  return make("ol", { class: "waterfall" }, ...parts.map(({ name, label, ms }) => {
    const bar = make("span", { class: `bar of-${name}` });
    bar.style.left = `${(before / whole) * 100}%`;
    bar.style.width = `${Math.max(0.4, (ms / whole) * 100)}%`;
    before += ms;
    return make("li", {}, make("span", { class: "name" }, label || SAID[name] || name), make("span", { class: "track" }, bar), make("span", { class: "score" }, milliseconds(ms)));
  }));
}

/** entries: {at, model, status, ms, about}; newest first. */
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

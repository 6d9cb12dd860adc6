// A chart with a legend that shows the values under the cursor. uPlot draws the lines.
import { make } from "./dom.js";

const HEIGHT = 190;
/** Lines also differ by their dashes, because not everybody can tell the colours apart. */
const DASHES = [[], [6, 3], [2, 3], [10, 4], [6, 2, 2, 2], [1, 3], [12, 3, 3, 3], [4, 4], [2, 6]];
/** Charts with the same key share the cursor. */
const SYNC_KEY = "dashboard";

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = (at, withSeconds = true) =>
  new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined, hourCycle: "h23" });

/** A figure with a chart. `format` formats a value. With `stacked`, each line starts at the one below. */
export class Chart {
  constructor(title, format, { stacked = false } = {}) {
    Object.assign(this, { title, format, stacked, lines: [], data: [[]], key: "", at: null });
    this.time = make("time");
    this.plot = make("div", { class: "plot", tabindex: "0", role: "img", onkeydown: event => this.move(event), onblur: () => this.leave() });
    this.legend = make("ul", { class: "legend" });
    this.figure = make("figure", { class: "panel" }, make("figcaption", {}, make("span", {}, title), this.time), this.plot, this.legend);
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  /** Show lines: {name, colour (a CSS variable), values}. `times` are Unix times. `events` get a mark each. */
  show(times, lines, events, range) {
    Object.assign(this, { lines, events, range });
    const empty = !lines.some(line => line.values.some(value => value !== null));
    this.data = [times, ...(this.stacked ? stack(lines, times.length) : lines.map(line => line.values))];
    const key = JSON.stringify([empty, lines.map(line => [line.name, colour(line.colour)]), colour("--line")]);
    if (key !== this.key) this.build(empty);
    else if (this.chart) this.chart.setData(this.data);
    this.key = key;
    this.describe();
  }

  build(empty) {
    this.chart?.destroy();
    this.chart = null;
    this.plot.replaceChildren();
    if (empty) return this.plot.append(make("p", { class: "nothing" }, "No values yet."));
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, font: "11px system-ui" };
    this.chart = new uPlot({
      width: this.width(), height: HEIGHT, legend: { show: false },
      cursor: { sync: { key: SYNC_KEY }, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { range: () => this.range }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, space: 70, size: 32, values: (_, ticks) => ticks.map(tick => clock(tick, this.range[1] - this.range[0] < 240)) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(this.format) },
      ],
      series: [{}, ...this.lines.map((line, index) => ({
        label: line.name, stroke: colour(line.colour), width: 2, dash: DASHES[index % DASHES.length], spanGaps: false,
        fill: this.stacked ? `${colour(line.colour)}33` : undefined,
        // A value between two gaps has no line, so it is drawn as a point.
        points: { show: (chart, index) => hasIsolated(chart.data[index]) },
      }))],
      bands: this.stacked ? this.lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
      hooks: { setCursor: [chart => this.describe(chart.cursor.idx)], draw: [chart => this.mark(chart)] },
    }, this.data, this.plot);
  }

  width() {
    return Math.max(120, this.plot.clientWidth);
  }

  resize() {
    if (this.chart && this.chart.width !== this.width()) this.chart.setSize({ width: this.width(), height: HEIGHT });
  }

  /** Draw each event as a dashed line from top to bottom. */
  mark(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = colour("--edge");
    ctx.setLineDash([3, 4]);
    for (const event of this.events) {
      if (event.at < this.range[0] || event.at > this.range[1]) continue;
      const x = Math.round(chart.valToPos(event.at, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Write the values at an index, or the last ones, into the legend and the label for screen readers. */
  describe(index) {
    const at = index ?? this.data[0].length - 1, values = this.lines.map(line => line.values[at]);
    this.time.textContent = this.data[0][at] === undefined ? "" : clock(this.data[0][at]);
    const texts = values.map(value => (value === null || value === undefined ? "–" : this.format(value)));
    this.legend.replaceChildren(...this.lines.map((line, number) =>
      make("li", {}, swatch(line.colour, DASHES[number % DASHES.length]), make("span", {}, line.name), make("b", {}, texts[number]))));
    const summary = this.lines.map((line, number) => `${line.name} ${texts[number] === "–" ? "none" : texts[number]}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}. ${this.time.textContent}: ${summary || "no values yet"}. The arrow keys move through the time.`);
  }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, PageUp: 12, PageDown: -12 }[event.key];
    if (!this.chart || step === undefined) return;
    event.preventDefault();
    const last = this.data[0].length - 1;
    const from = this.chart.cursor.idx ?? last;
    const at = Math.min(last, Math.max(0, from + step));
    this.chart.setCursor({ left: this.chart.valToPos(this.data[0][at], "x"), top: 20 });
  }

  leave() {
    this.chart?.setCursor({ left: -10, top: -10 });
  }
}

function stack(lines, length) {
  const below = new Array(length).fill(0);
  return lines.map(line => line.values.map((value, at) => (value === null ? null : (below[at] += value))));
}

/** True if a value has no neighbour. */
function hasIsolated(values) {
  return values.some((value, at) => value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null);
}

function swatch(name, dash) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(svg.namespaceURI, "line");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("viewBox", "0 0 28 8");
  for (const [key, value] of Object.entries({ x1: 0, x2: 28, y1: 4, y2: 4, stroke: colour(name), "stroke-width": 3, "stroke-dasharray": dash.join(" ") })) line.setAttribute(key, value);
  svg.append(line);
  return svg;
}

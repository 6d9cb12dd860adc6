// A line chart with a legend that shows the values under the cursor. uPlot draws the lines.
import { make } from "./dom.js";

const HEIGHT = 190, MIN_WIDTH = 120; // CSS pixels
const SECONDS_BELOW_S = 240; // a shorter range has seconds on its time axis
/** Lines also differ by their dashes, because not everybody can tell the colours apart. */
const DASHES = [[], [6, 3], [2, 3], [10, 4], [6, 2, 2, 2], [1, 3], [12, 3, 3, 3], [4, 4], [2, 6]];
const EVENT_DASH = [3, 4];
/** Charts with the same key share the cursor. */
const SYNC_KEY = "dashboard";

/** Return the value of a CSS variable. */
const cssColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const formatClock = (unixTime, withSeconds = true) =>
  new Date(unixTime * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined, hourCycle: "h23" });

/**
 * A figure with a chart. `format` formats a value. With `stacked`, each line starts at the one below. On a
 * `logarithmic` axis, one large value leaves the others readable; all values must be above 0.
 */
export class Chart {
  constructor(title, format, { stacked = false, logarithmic = false } = {}) {
    Object.assign(this, { title, format, stacked, logarithmic, lines: [], data: [[]], builtFor: "" });
    this.time = make("time");
    this.plot = make("div", { class: "plot", tabindex: "0", role: "img", onkeydown: event => this.moveCursor(event), onblur: () => this.hideCursor() });
    this.legend = make("ul", { class: "legend" });
    this.marks = make("p", { class: "help marks" });
    this.figure = make("figure", { class: "panel" }, make("figcaption", {}, make("span", {}, title, logarithmic ? make("small", {}, " logarithmic scale") : null), this.time), this.plot, this.legend, this.marks);
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  /** Show lines: {name, colour (a CSS variable), values}. `times` are Unix times, as are the ends of `range`. `events` get a mark each. */
  show(times, lines, events, range) {
    Object.assign(this, { lines, events, range });
    const isEmpty = !lines.some(line => line.values.some(value => value !== null));
    this.data = [times, ...(this.stacked ? stackValues(lines, times.length) : lines.map(line => line.values))];
    // Other lines or colours need a new chart; other values do not.
    const wanted = JSON.stringify([isEmpty, lines.map(line => [line.name, cssColour(line.colour)]), cssColour("--line")]);
    if (wanted !== this.builtFor) this.build(isEmpty);
    else if (this.chart) this.chart.setData(this.data);
    this.builtFor = wanted;
    this.showValues();
  }

  build(isEmpty) {
    this.chart?.destroy();
    this.chart = null;
    this.plot.replaceChildren();
    if (isEmpty) return this.plot.append(make("p", { class: "no-values" }, "No values yet."));
    const axis = { stroke: cssColour("--soft"), grid: { stroke: cssColour("--line"), width: 1 }, ticks: { stroke: cssColour("--line") }, font: "11px system-ui" };
    this.chart = new uPlot({
      width: this.width(), height: HEIGHT, legend: { show: false },
      cursor: { sync: { key: SYNC_KEY }, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { range: () => this.range }, y: this.logarithmic ? { distr: 3, range: (_, low, high) => [low / 2, high * 2] } : { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, space: 70, size: 32, values: (_, ticks) => ticks.map(tick => formatClock(tick, this.range[1] - this.range[0] < SECONDS_BELOW_S)) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(tick => (tick === null ? null : this.format(tick))) },
      ],
      series: [{}, ...this.lines.map((line, index) => ({
        label: line.name, stroke: cssColour(line.colour), width: 2, dash: DASHES[index % DASHES.length], spanGaps: false,
        fill: this.stacked ? `${cssColour(line.colour)}33` : undefined,
        // A value between two gaps has no line, so it is drawn as a point.
        points: { show: (chart, seriesIndex) => hasIsolatedValue(chart.data[seriesIndex]) },
      }))],
      bands: this.stacked ? this.lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
      hooks: { setCursor: [chart => this.showValues(chart.cursor.idx ?? undefined)], draw: [chart => this.drawEvents(chart)] },
    }, this.data, this.plot);
  }

  width() {
    return Math.max(MIN_WIDTH, this.plot.clientWidth);
  }

  resize() {
    if (this.chart && this.chart.width !== this.width()) this.chart.setSize({ width: this.width(), height: HEIGHT });
  }

  shownEvents() {
    return this.events.filter(event => event.at >= this.range[0] && event.at <= this.range[1]);
  }

  /** Draw each event as a dashed line from top to bottom. */
  drawEvents(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = cssColour("--edge");
    ctx.setLineDash(EVENT_DASH);
    for (const event of this.shownEvents()) {
      const x = Math.round(chart.valToPos(event.at, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Say below the chart what its dashed lines from top to bottom are; near one, what happened there. */
  showMarks(index) {
    const times = this.data[0], near = this.shownEvents().filter(event => event.at > (times[index - 1] ?? this.range[0]) && event.at <= (times[index + 1] ?? this.range[1]));
    const text = near.length && this.chart?.cursor.idx !== undefined && this.chart?.cursor.idx !== null ? near.map(event => `${formatClock(event.at)} ${event.text}`).join(", ") : "a change of the box: see Events";
    this.marks.replaceChildren(...(this.chart && this.shownEvents().length ? [swatch("--edge", EVENT_DASH), text] : []));
  }

  /** Write the values at an index, or the last ones, into the legend and the label for screen readers. */
  showValues(index = this.data[0].length - 1) {
    this.showMarks(index);
    const time = this.data[0][index], values = this.lines.map(line => line.values[index]);
    this.time.textContent = time === undefined ? "" : formatClock(time);
    const texts = values.map(value => (value === null || value === undefined ? "–" : this.format(value)));
    this.legend.replaceChildren(...this.lines.map((line, lineIndex) =>
      make("li", {}, swatch(line.colour, DASHES[lineIndex % DASHES.length]), make("span", {}, line.name), make("b", {}, texts[lineIndex]))));
    const summary = this.lines.map((line, lineIndex) => `${line.name} ${texts[lineIndex] === "–" ? "none" : texts[lineIndex]}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}. ${this.time.textContent}: ${summary || "no values yet"}. The arrow keys move through the time.`);
  }

  /** Move the cursor with the arrow keys. */
  moveCursor(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, PageUp: 12, PageDown: -12 }[event.key];
    if (!this.chart || step === undefined) return;
    event.preventDefault();
    const last = this.data[0].length - 1;
    const index = Math.min(last, Math.max(0, (this.chart.cursor.idx ?? last) + step));
    this.chart.setCursor({ left: this.chart.valToPos(this.data[0][index], "x"), top: 20 });
  }

  hideCursor() {
    this.chart?.setCursor({ left: -10, top: -10 });
  }
}

/** Return each line's values on top of those of the lines before it. */
function stackValues(lines, length) {
  const sums = new Array(length).fill(0);
  return lines.map(line => line.values.map((value, index) => (value === null ? null : (sums[index] += value))));
}

/** True if a value has no neighbour. */
function hasIsolatedValue(values) {
  return values.some((value, index) => value !== null && (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null);
}

/** A piece of a line, for the legend. */
function swatch(colour, dash) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(svg.namespaceURI, "line");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("viewBox", "0 0 28 8");
  for (const [key, value] of Object.entries({ x1: 0, x2: 28, y1: 4, y2: 4, stroke: cssColour(colour), "stroke-width": 3, "stroke-dasharray": dash.join(" ") })) line.setAttribute(key, value);
  svg.append(line);
  return svg;
}

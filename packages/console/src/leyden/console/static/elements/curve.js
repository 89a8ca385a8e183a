/**
 * A chart of one or more series over steps. One uPlot instance is made for it and kept; updates only set its data.
 * @module
 */

import { element, setText, svg } from "../dom.js";
import { number } from "../format.js";
import { extent, lastOf, smooth } from "../series.js";
import { colour, onTheme } from "../theme.js";
import uPlot from "../vendor/uplot/uPlot.esm.js";

const HEIGHT = 190;
const COLOURS = 8;
/** Series beyond the eighth have the first colours again, dashed; so have smoothed and raw lines the same colour. */
const DASHES = [undefined, [6, 4], [2, 3]];

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {string} [label]
 * @property {boolean} [points] draws points, and a line across gaps
 * @property {boolean} [alone] draws points alone
 */

/**
 * @typedef {object} CurveOptions
 * @property {AbortSignal} signal
 * @property {string} sync charts of the same name share their cursor
 * @property {(step: number) => void} [onPick] a point was clicked
 * @property {(range: [number, number] | null) => void} [onZoom] the reader zoomed; null: back to all
 * @property {(value: number) => string} [format]
 * @property {number} [top] the y axis goes from 0 to this value, so that several charts can be compared
 */

export class Curve {
  /**
   * @param {string} title
   * @param {Series[]} series
   * @param {CurveOptions} options
   */
  constructor(title, series, options) {
    this.series = series;
    this.options = options;
    this.format = options.format ?? number;
    /** @type {number[]} */
    this.steps = [];
    /** @type {(number | null)[][]} */
    this.values = series.map(() => []);
    this.weight = 0;
    /** @type {{step: number, name: string}[]} */
    this.alerts = [];
    /** @type {number | null} */
    this.picked = null;
    /** @type {[number, number] | null} */
    this.zoomed = null;
    this.keys = series.map((one, index) => this.#legendKey(one, index));
    this.area = element("div.chart-area", {
      role: "img",
      "aria-label": `Curve: ${title}. The values of a step are listed below the charts.`,
    });
    this.node = element(
      "figure.chart",
      {},
      element("h3", {}, title),
      element(
        "div.legend",
        { role: "group", "aria-label": `Series of ${title}` },
        this.keys.map((key) => key.button),
      ),
      this.area,
    );
    this.node.style.margin = "0";
    this.#watch();
  }

  /**
   * @param {number[]} steps ascending
   * @param {(number | null)[][]} values one column a series
   */
  setData(steps, values) {
    this.steps = steps;
    this.values = values;
    this.#update();
  }

  /** @param {number} weight of the past, 0 to 1; 0: not smoothed */
  setSmoothing(weight) {
    this.weight = weight;
    this.#update();
  }

  /** @param {[number, number] | null} range of steps */
  setZoom(range) {
    this.zoomed = range;
    if (!this.plot) return;
    const [min, max] = range ?? extent(this.steps);
    this.plot.setScale("x", { min, max });
  }

  /**
   * Marks steps with alerts, and the step that the reader looks at.
   * @param {{step: number, name: string}[]} alerts
   * @param {number | null} picked
   */
  setMarks(alerts, picked) {
    this.alerts = alerts;
    this.picked = picked;
    this.plot?.redraw(false);
  }

  /** Makes the uPlot instance when the chart comes into sight. */
  #watch() {
    const { signal } = this.options;
    const sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.area.clientWidth, height: HEIGHT }));
    const sight = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && !this.plot && this.#make(),
    );
    sizes.observe(this.area);
    sight.observe(this.area);
    onTheme(signal, () => this.#recolour());
    signal.addEventListener("abort", () => {
      sizes.disconnect();
      sight.disconnect();
      this.plot?.destroy();
      this.plot = undefined;
    });
  }

  #make() {
    const { sync, onPick, onZoom, top } = this.options;
    this.plot = new uPlot(
      {
        width: this.area.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        padding: [6, 8, 0, 0],
        scales: { x: { time: false }, y: { range: top === undefined ? yRange : [0, top] } },
        axes: [
          this.#axis({ size: 26, values: (_, ticks) => ticks.map(wholeStep) }),
          this.#axis({ size: yAxisSize, values: (_, ticks) => ticks.map(number) }),
        ],
        cursor: {
          sync: { key: sync },
          drag: { x: true, y: false, setScale: false },
          points: { size: 6 },
          bind: { dblclick: () => () => onZoom?.(null) },
        },
        series: [
          {},
          ...this.series.map((one, index) => this.#line(one, index, false)),
          ...this.series.map((one, index) => this.#line(one, index, true)),
        ],
        hooks: {
          setCursor: [(plot) => this.#showValues(plot.cursor.idx)],
          setSelect: [(plot) => this.#selected(plot, onZoom)],
          draw: [(plot) => this.#drawMarks(plot)],
        },
      },
      this.#data(),
      this.area,
    );
    this.plot.over.addEventListener("click", () => {
      const index = this.plot.cursor.idx;
      if (index !== null && index !== undefined && onPick) onPick(this.steps[index]);
    });
    this.setZoom(this.zoomed);
    this.#showValues(null);
  }

  #axis(more) {
    return {
      stroke: () => colour("--soft"),
      grid: { stroke: () => colour("--grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
      ...more,
    };
  }

  #line(one, index, smoothed) {
    const faint = () => !smoothed && !one.points && this.weight > 0;
    return {
      label: one.label ?? one.name,
      stroke: () => seriesColour(index) + (faint() ? "55" : ""),
      width: smoothed ? 2 : 1.5,
      dash: DASHES[Math.floor(index / COLOURS) % DASHES.length],
      spanGaps: one.points ?? false,
      ...(one.alone && { paths: () => null }),
      points: one.points || one.alone ? { show: !smoothed, size: 5, fill: () => seriesColour(index) } : { show: onlyFew },
      show: this.keys[index].shown,
    };
  }

  #data() {
    const smoothed = this.values.map((values, index) =>
      this.weight > 0 && !this.series[index].points && !this.series[index].alone ? smooth(values, this.weight) : values.map(() => null),
    );
    return [this.steps, ...this.values, ...smoothed];
  }

  #update() {
    if (!this.plot) return;
    this.plot.setData(this.#data(), false);
    const [min, max] = this.zoomed ?? extent(this.steps);
    this.plot.setScale("x", { min, max });
    this.#showValues(this.plot.cursor.idx);
  }

  #selected(plot, onZoom) {
    if (plot.select.width < 4) return;
    const [from, to] = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    onZoom?.([Math.floor(from), Math.ceil(to)]);
  }

  /** The legend shows the values below the cursor, else the last one of each series. */
  #showValues(index) {
    for (const [position, key] of this.keys.entries()) {
      const values = this.values[position];
      const value = index === null || index === undefined ? lastOf(values) : (values[index] ?? null);
      setText(key.value, this.steps.length ? this.format(value) : "");
    }
  }

  #drawMarks(plot) {
    const { ctx } = plot;
    ctx.save();
    ctx.lineWidth = 1;
    for (const alert of this.alerts) drawLine(plot, alert.step, colour("--bad"), [3, 3]);
    if (this.picked !== null) drawLine(plot, this.picked, colour("--text"), []);
    ctx.restore();
  }

  #legendKey(one, index) {
    const value = element("span");
    const swatch = svg(
      "svg.swatch",
      { viewBox: "0 0 10 10", "aria-hidden": "true" },
      svg("rect", { width: 10, height: 10 }),
    );
    const button = element(
      "button",
      { type: "button", "aria-pressed": "true", onclick: () => this.#toggle(index) },
      swatch,
      one.label ?? one.name,
      value,
    );
    swatch.style.fill = `var(--series-${index % COLOURS})`;
    return { button, value, shown: true };
  }

  #toggle(index) {
    const key = this.keys[index];
    key.shown = !key.shown;
    key.button.setAttribute("aria-pressed", String(key.shown));
    this.plot?.setSeries(1 + index, { show: key.shown });
    this.plot?.setSeries(1 + this.series.length + index, { show: key.shown });
  }

  #recolour() {
    this.plot?.redraw(true, true);
  }
}

function drawLine(plot, step, stroke, dash) {
  const { min, max } = plot.scales.x;
  if (step < min || step > max) return;
  const x = Math.round(plot.valToPos(step, "x", true)) + 0.5;
  plot.ctx.beginPath();
  plot.ctx.strokeStyle = stroke;
  plot.ctx.setLineDash(dash);
  plot.ctx.moveTo(x, plot.bbox.top);
  plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
  plot.ctx.stroke();
}

function seriesColour(index) {
  return colour(`--series-${index % COLOURS}`);
}

function yRange(_, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const margin = (high - low) * 0.06;
  return [low - margin, high + margin];
}

/** Room for the longest label. */
function yAxisSize(_, labels) {
  return 14 + 6.5 * Math.max(3, ...(labels ?? []).map((label) => String(label).length));
}

function wholeStep(value) {
  return Number.isInteger(value) ? number(value) : "";
}

/** A series of few points would otherwise be invisible where its neighbours are missing. */
function onlyFew(plot) {
  return plot.data[0].length < 4;
}

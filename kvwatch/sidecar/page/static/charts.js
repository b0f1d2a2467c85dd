// Draws the charts of the unfolded engines from /api/v1/history. The page has the same data as text.

/* global uPlot */

const SHOWN_S = 600;
const HEIGHT = 130;
const HIT_WINDOW_S = 60;
const RESTART = " restart ";
const SAME_S = 2e-3; // times closer than this are equal: the API rounds them
const TICKS_S = [15, 30, 60, 120];
const MAX_TICKS = 5;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const COLUMNS = [
  "at", "kv_cache_usage_ratio", "requests_running", "requests_waiting", "preemptions_total",
  "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total",
];
const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0)} %`);
const whole = (value) => (value == null ? "–" : value.toFixed(0));
const seconds = (value) => {
  if (value == null) return "–";
  if (value && value < 1) return `${(1000 * value).toFixed(0)} ms`;
  return `${value.toFixed(value && value < 10 ? 1 : 0)} s`;
};

/** The charts: lines as [label, colour, format], and their data from the columns of an engine and the indexes of the
    first samples of new vLLM processes. */
const CHARTS = {
  usage: { lines: [["usage", "one", percent]], top: () => 1, ticks: percent, fill: true, mark: true,
    data: (c) => [c.kv_cache_usage_ratio] },
  queue: { lines: [["running", "one", whole], ["waiting", "two", whole]], ticks: whole, least: 4,
    data: (c) => [c.requests_running, c.requests_waiting] },
  preemptions: { lines: [["since the previous sample", "two", whole]], ticks: whole, least: 4, fill: true,
    data: (c, starts) => [increases(c.preemptions_total, starts)] },
  hits: { lines: [["over 1 min", "three", percent]], top: () => 1, ticks: percent,
    data: (c, starts) => [shares(c.at, c.prefix_cache_hit_tokens_total, c.prefix_cache_queried_tokens_total, starts)] },
  ttft: { lines: [["p50 over 1 min", "one", seconds], ["p95 over 1 min", "two", seconds]], ticks: seconds, latency: true },
};

/** The increase of a counter at each sample; null where unknown. */
export function increases(total, starts) {
  const known = (i) => i && !starts.has(i) && total[i] != null && total[i - 1] != null;
  return total.map((value, i) => (known(i) ? Math.max(value - total[i - 1], 0) : null));
}

/** The increase of `hits` divided by that of `queries`, in the minute before each sample or since the process started;
    null without queries. */
export function shares(at, hits, queries, starts) {
  let from = 0;
  return at.map((now, i) => {
    if (starts.has(i)) from = i;
    while (at[from] < now - HIT_WINDOW_S) from += 1;
    const all = queries[i] - queries[from];
    return queries[i] != null && hits[i] != null && all > 0 ? Math.min((hits[i] - hits[from]) / all, 1) : null;
  });
}

/** Ticks of a time axis of `span` seconds, oldest first. */
function ticks(span) {
  const step = TICKS_S.find((one) => span / one <= MAX_TICKS);
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, i) => -step * i).reverse();
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The charts of all engines on the page. */
export class Charts {
  constructor(root) {
    this.root = root;
    this.engines = new WeakMap();
    root.addEventListener("toggle", () => this.refresh().catch(() => {}), true);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  unfolded() {
    return [...this.root.querySelectorAll(".charts")].filter((one) => one.closest("details").open);
  }

  /** Updates the charts of the unfolded engines, one after another. */
  async refresh() {
    for (const holder of this.unfolded()) {
      if (!this.engines.has(holder)) this.engines.set(holder, new Engine(holder));
      await this.engines.get(holder).refresh();
    }
  }

  repaint() {
    for (const holder of this.root.querySelectorAll(".charts")) this.engines.get(holder)?.clear();
    this.refresh().catch(() => {});
  }
}

class Engine {
  constructor(holder) {
    this.holder = holder;
    this.columns = Object.fromEntries(COLUMNS.map((name) => [name, []]));
    this.latencies = {};
    this.plots = new Map();
    this.now = 0;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(holder);
  }

  async refresh() {
    const last = this.columns.at.at(-1);
    let history = await this.fetch(last ? Math.min(Math.ceil(this.now - last) + 10, SHOWN_S) : SHOWN_S);
    const overlaps = !last || history?.engines[0].columns.at[0] <= last + SAME_S;
    if (history && !overlaps) history = await this.fetch(SHOWN_S); // the page was paused or hidden
    if (!history) return; // the engine is gone; the page shows it at its next refresh
    this.now = history.at;
    this.append(history.engines[0]);
    this.draw();
  }

  /** The history of the last `span` seconds; null if the engine is gone. */
  async fetch(span) {
    const { target, model, engine } = this.holder.dataset;
    const query = new URLSearchParams({
      target, model_name: model, engine, seconds: span, latency_seconds: SHOWN_S, columns: COLUMNS.join(","),
    });
    const answer = await fetch(`/api/v1/history?${query}`, { cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (answer.status === 404) return null;
    if (!answer.ok) throw new Error(`kvwatch answered ${answer.status}`);
    return answer.json();
  }

  /** Appends new samples and drops those that kvwatch no longer has. */
  append({ columns, latencies }) {
    const last = this.columns.at.at(-1) ?? -Infinity;
    const oldest = Math.max(this.now - SHOWN_S, Number(this.holder.dataset.since) - SAME_S);
    const known = columns.at.filter((at) => at <= last + SAME_S).length;
    for (const name of COLUMNS) this.columns[name].push(...columns[name].slice(known));
    const old = this.columns.at.filter((at) => at < oldest).length;
    for (const name of COLUMNS) this.columns[name].splice(0, old);
    this.latencies = latencies;
  }

  /** Times of restarts of vLLM, unix seconds. */
  restarts() {
    return this.holder.dataset.restarts.split(" ").filter(Boolean).map(Number);
  }

  draw() {
    const restarts = this.restarts();
    const starts = new Set(restarts.map((one) => this.columns.at.findIndex((at) => at > one - SAME_S)));
    this.marks = restarts.map((one) => one - this.now);
    for (const place of this.holder.querySelectorAll(".plot")) {
      const chart = CHARTS[place.dataset.chart];
      const at = chart.latency ? this.latencies.at : this.columns.at;
      const lines = chart.latency
        ? [this.latencies.time_to_first_token_p50_seconds, this.latencies.time_to_first_token_p95_seconds]
        : chart.data(this.columns, starts);
      const data = this.split([at.map((one) => one - this.now), ...lines], chart.latency ? 90 : Number(this.holder.dataset.gap));
      if (!this.plots.has(place)) this.plots.set(place, plot(chart, place, data, this));
      else this.plots.get(place).setData(data);
      requestAnimationFrame(() => this.showNewest(this.plots.get(place))); // after a new chart has drawn itself
    }
  }

  /** `data` with a null between two samples that are further apart than `gap`, and at a restart, to break the line. */
  split(data, gap) {
    const found = data.map(() => []);
    const isBreak = (before, after) => after - before > gap || this.marks.some((at) => at > before + SAME_S && at < after + SAME_S);
    data[0].forEach((at, i) => {
      if (i && isBreak(data[0][i - 1], at)) found.forEach((column, n) => column.push(n ? null : (at + data[0][i - 1]) / 2));
      found.forEach((column, n) => column.push(data[n][i] ?? null));
    });
    return found;
  }

  /** Shows the newest numbers in the legend of a chart while the pointer is not on it. */
  showNewest(one) {
    if (!one) return;
    const idle = one.cursor.left == null || one.cursor.left < 0;
    if (idle) one.setLegend({ idx: one.data[0].length - 1 }, false);
    one.root.parentElement.nextElementSibling.classList.toggle("newest", idle);
  }

  resize() {
    for (const [place, one] of this.plots) {
      if (place.clientWidth && place.clientWidth !== one.width) one.setSize({ width: place.clientWidth, height: HEIGHT });
    }
  }

  clear() {
    for (const one of this.plots.values()) one.destroy();
    this.plots.clear();
  }
}

/** One chart of an engine. */
function plot(chart, place, data, engine) {
  const settings = engine.holder.dataset;
  const span = () => Number(settings.span);
  const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    scales: {
      x: { time: false, range: () => [-span(), 0] },
      y: { range: (_, low, high) => [0, chart.top ? chart.top() : Math.max((high ?? 0) * 1.1, chart.least ?? 1)] },
    },
    axes: [
      { ...axis, size: 24, splits: () => ticks(span()),
        values: (_, splits) => splits.map((at) => (at ? (at % 60 ? `${at} s` : `${at / 60} min`) : "now")) },
      { ...axis, size: 56, space: 35, incrs: chart.least ? WHOLE_STEPS : undefined, values: (_, splits) => splits.map(chart.ticks) },
    ],
    series: [
      { label: "ago", value: (_, at) => (at == null ? "–" : `${Math.round(-at)} s`) },
      ...chart.lines.map(([label, name, format]) => ({
        label, stroke: colour(name), width: 1.5, points: { show: Boolean(chart.latency) }, value: (_, value) => format(value),
        fill: chart.fill ? `${colour(name)}33` : undefined,
      })),
    ],
    legend: { mount: (_, legend) => place.nextElementSibling.replaceChildren(legend) },
    cursor: { drag: { x: false, y: false } },
    hooks: { draw: [
      ...(chart.mark ? [(self) => drawFull(self, Number(settings.full))] : []),
      (self) => engine.marks.filter((at) => at > -span()).forEach((at) => drawRestart(self, at)),
    ] },
  };
  return new uPlot(options, data, place);
}

/** Draws the usage from which the cache counts as full, as a dashed line. */
function drawFull(self, usage) {
  const y = Math.round(self.valToPos(usage, "y", true)) + 0.5;
  drawLine(self, "critical", [4, 4], [self.bbox.left, y], [self.bbox.left + self.bbox.width, y]);
}

/** Draws a restart of vLLM as a vertical line with its label. */
function drawRestart(self, at) {
  const { ctx, bbox } = self;
  const x = Math.round(self.valToPos(at, "x", true)) + 0.5;
  drawLine(self, "ink", [], [x, bbox.top], [x, bbox.top + bbox.height]);
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  const wide = ctx.measureText(RESTART).width;
  const left = x > bbox.left + bbox.width / 2 ? x - wide - devicePixelRatio : x + devicePixelRatio;
  ctx.fillStyle = colour("paper");
  ctx.fillRect(left, bbox.top, wide, 13 * devicePixelRatio);
  ctx.fillStyle = colour("ink");
  ctx.fillText(RESTART, left, bbox.top + devicePixelRatio);
  ctx.restore();
}

function drawLine({ ctx }, name, dashes, from, to) {
  ctx.save();
  ctx.strokeStyle = colour(name);
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dashes);
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.restore();
}

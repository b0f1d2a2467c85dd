// Draws the charts of the engines that are unfolded, from /api/v1/history. What each shows is also told in words by
// the page, so nothing here is the only place where something can be read.

/* global uPlot */

const SHOWN_S = 600;
const HEIGHT = 130;
const HIT_WINDOW_S = 60;
const RESTART = " restart ";
const SAME_S = 2e-3; // times closer than that are one, rounded
const TICKS = [15, 30, 60, 120]; // seconds apart
const MOST_TICKS = 5;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const COLUMNS = [
  "at", "kv_cache_usage_ratio", "requests_running", "requests_waiting", "preemptions_total",
  "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total",
];
const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(1)} %`);
const whole = (value) => (value == null ? "–" : value.toFixed(0));
const seconds = (value) => {
  if (value == null) return "–";
  if (value && value < 1) return `${(1000 * value).toFixed(0)} ms`;
  return `${value.toFixed(value && value < 10 ? 1 : 0)} s`;
};

/** What each chart draws: its lines as [name, colour, words], from the columns of an engine and the indexes of the
    samples with which another process of vLLM began. */
const CHARTS = {
  usage: { lines: [["KV usage", "one", percent]], top: () => 1, ticks: percent, fill: true, mark: true,
    data: (c) => [c.kv_cache_usage_ratio] },
  queue: { lines: [["running", "one", whole], ["waiting", "two", whole]], ticks: whole, least: 4,
    data: (c) => [c.requests_running, c.requests_waiting] },
  preemptions: { lines: [["since the sample before", "two", whole]], ticks: whole, least: 4, fill: true,
    data: (c, begun) => [increases(c.preemptions_total, begun)] },
  hits: { lines: [["over a minute", "three", percent]], top: () => 1, ticks: percent,
    data: (c, begun) => [shares(c.at, c.prefix_cache_hit_tokens_total, c.prefix_cache_queried_tokens_total, begun)] },
  ttft: { lines: [["p50, over a minute", "one", seconds], ["p95, over a minute", "two", seconds]], ticks: seconds, latency: true },
};

/** What a counter rose by with each sample. */
export function increases(total, begun) {
  const known = (i) => i && !begun.has(i) && total[i] != null && total[i - 1] != null;
  return total.map((value, i) => (known(i) ? Math.max(value - total[i - 1], 0) : null));
}

/** The increase of one counter by that of another, over the minute before each sample or since the process began; null
    where nothing was asked. */
export function shares(at, hits, asked, begun) {
  let from = 0;
  return at.map((now, i) => {
    if (begun.has(i)) from = i;
    while (at[from] < now - HIT_WINDOW_S) from += 1;
    const all = asked[i] - asked[from];
    return asked[i] != null && hits[i] != null && all > 0 ? Math.min((hits[i] - hits[from]) / all, 1) : null;
  });
}

/** Times on the axis of so many seconds before now, oldest first. */
function ticks(span) {
  const apart = TICKS.find((one) => span / one <= MOST_TICKS);
  return Array.from({ length: Math.floor(span / apart) + 1 }, (_, i) => -apart * i).reverse();
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

  /** Brings every chart that can be seen up to date, one engine after another. */
  async refresh() {
    for (const holder of this.unfolded()) {
      if (!this.engines.has(holder)) this.engines.set(holder, new Engine(holder));
      await this.engines.get(holder).refresh();
    }
  }

  repaint() {
    for (const holder of this.root.querySelectorAll(".charts")) this.engines.get(holder)?.forget();
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
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(holder);
  }

  async refresh() {
    const last = this.columns.at.at(-1);
    let told = await this.ask(last ? Math.min(Math.ceil(this.now - last) + 10, SHOWN_S) : SHOWN_S);
    const joined = !last || told?.engines[0].columns.at[0] <= last + SAME_S;
    if (told && !joined) told = await this.ask(SHOWN_S); // nobody looked for a while
    if (!told) return; // it went away; the page will say so
    this.now = told.at;
    this.take(told.engines[0]);
    this.draw();
  }

  /** The history of so many seconds; null of an engine that is no longer there. */
  async ask(span) {
    const { target, model, engine } = this.holder.dataset;
    const query = new URLSearchParams({
      target, model_name: model, engine, seconds: span, latency_seconds: SHOWN_S, columns: COLUMNS.join(","),
    });
    const answer = await fetch(`/api/v1/history?${query}`, { cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (answer.status === 404) return null;
    if (!answer.ok) throw new Error(`kvwatch answered ${answer.status}`);
    return answer.json();
  }

  /** Adds the samples that are new, and forgets those that kvwatch no longer has. */
  take({ columns, latencies }) {
    const last = this.columns.at.at(-1) ?? -Infinity;
    const fresh = columns.at.findIndex((at) => at > last + SAME_S);
    const oldest = Math.max(this.now - SHOWN_S, Number(this.holder.dataset.since) - SAME_S);
    for (const name of COLUMNS) {
      const added = fresh < 0 ? [] : columns[name].slice(fresh);
      this.columns[name].push(...added);
    }
    const stale = this.columns.at.findIndex((at) => at >= oldest);
    for (const name of COLUMNS) this.columns[name].splice(0, stale < 0 ? this.columns.at.length : stale);
    this.latencies = latencies;
  }

  /** When vLLM restarted, unix seconds. */
  restarts() {
    return this.holder.dataset.restarts.split(" ").filter(Boolean).map(Number);
  }

  draw() {
    const restarts = this.restarts();
    const begun = new Set(restarts.map((one) => this.columns.at.findIndex((at) => at > one - SAME_S)));
    this.marks = restarts.map((one) => one - this.now);
    for (const place of this.holder.querySelectorAll(".plot")) {
      const chart = CHARTS[place.dataset.chart];
      const at = chart.latency ? this.latencies.at : this.columns.at;
      const lines = chart.latency
        ? [this.latencies.time_to_first_token_p50_seconds, this.latencies.time_to_first_token_p95_seconds]
        : chart.data(this.columns, begun);
      const data = this.broken([at.map((one) => one - this.now), ...lines], chart.latency ? 90 : Number(this.holder.dataset.gap));
      if (!this.plots.has(place)) this.plots.set(place, plot(chart, place, data, this));
      else this.plots.get(place).setData(data);
      requestAnimationFrame(() => this.newest(this.plots.get(place))); // a new chart first draws itself
    }
  }

  /** With a hole wherever two samples are further apart than a gap: nobody knows what was in it; and at a restart. */
  broken(data, gap) {
    const found = data.map(() => []);
    const parted = (before, after) => after - before > gap || this.marks.some((at) => at > before + SAME_S && at < after + SAME_S);
    data[0].forEach((at, i) => {
      if (i && parted(data[0][i - 1], at)) found.forEach((column, n) => column.push(n ? null : (at + data[0][i - 1]) / 2));
      found.forEach((column, n) => column.push(data[n][i] ?? null));
    });
    return found;
  }

  /** While nobody points at a chart, its legend tells the newest numbers. */
  newest(one) {
    if (!one) return;
    const free = one.cursor.left == null || one.cursor.left < 0;
    if (free) one.setLegend({ idx: one.data[0].length - 1 }, false);
    one.root.parentElement.nextElementSibling.classList.toggle("newest", free);
  }

  fit() {
    for (const [place, one] of this.plots) {
      if (place.clientWidth && place.clientWidth !== one.width) one.setSize({ width: place.clientWidth, height: HEIGHT });
    }
  }

  forget() {
    for (const one of this.plots.values()) one.destroy();
    this.plots.clear();
  }
}

/** One chart of an engine. */
function plot(chart, place, data, engine) {
  const told = engine.holder.dataset;
  const span = () => Number(told.span);
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
      { ...axis, size: 56, space: 35, incrs: chart.least ? WHOLE : undefined, values: (_, splits) => splits.map((value) => chart.ticks(value).replace(".0 %", " %")) },
    ],
    series: [
      { label: "ago", value: (_, at) => (at == null ? "–" : `${Math.round(-at)} s`) },
      ...chart.lines.map(([label, name, word]) => ({
        label, stroke: colour(name), width: 1.5, points: { show: Boolean(chart.latency) }, value: (_, value) => word(value),
        fill: chart.fill ? `${colour(name)}33` : undefined,
      })),
    ],
    legend: { mount: (_, legend) => place.nextElementSibling.replaceChildren(legend) },
    cursor: { drag: { x: false, y: false } },
    hooks: { draw: [
      ...(chart.mark ? [(self) => full(self, Number(told.full))] : []),
      (self) => engine.marks.filter((at) => at > -span()).forEach((at) => restarted(self, at)),
    ] },
  };
  return new uPlot(options, data, place);
}

/** The usage from which the cache counts as full, as a broken line. */
function full(self, usage) {
  const y = Math.round(self.valToPos(usage, "y", true)) + 0.5;
  line(self, "critical", [4, 4], [self.bbox.left, y], [self.bbox.left + self.bbox.width, y]);
}

/** A restart of vLLM, as a line from top to bottom with its word. */
function restarted(self, at) {
  const { ctx, bbox } = self;
  const x = Math.round(self.valToPos(at, "x", true)) + 0.5;
  line(self, "ink", [], [x, bbox.top], [x, bbox.top + bbox.height]);
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

function line({ ctx }, name, dashes, from, to) {
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

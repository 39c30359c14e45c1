// A chart of lines or points: legend that switches series, zoom by dragging, buttons or keys, and a cursor that reads values.
// Those with `runs` leave out the settings that are off in the list of runs; those `together` share their cursor.
const CHARTS = [], RUNS_OFF = new Set();

class Chart {
  constructor(host, options) {
    this.options = { height: 320, from: null, ...options };
    this.off = new Set();
    this.zoom = null;
    this.cursor = null;
    this.spoken = el("div", { class: "hidden", role: "status" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.svg = shape("svg", { role: "img" });
    this.plot = el("div", { class: "plot zooms", tabindex: "0", role: "group", "aria-roledescription": "chart", onkeydown: (e) => this.key(e) },
      this.svg, this.tip);
    this.legend = el("div", { class: "legend", role: "group", "aria-label": "Series shown" });
    this.heading = el("strong");
    const button = (text, label, action) => el("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.resetButton = button("Reset", "Show everything", () => { this.plot.focus(); this.zoomTo(null); });
    host.append(el("figure", {}, el("figcaption", {}, this.heading, this.resetButton,
      button("+", "Zoom in", () => this.zoomBy(0.5)), button("−", "Zoom out", () => this.zoomBy(2))), this.plot, this.legend, this.spoken));
    this.listen();
    CHARTS.push(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  show(data) {
    Object.assign(this.options, data);
    this.zoom = null;
    this.cursor = null;
    for (const series of this.options.series) if (series.away && !this.seen?.has(series.name)) this.off.add(series.name);
    this.seen = new Set(this.options.series.map((series) => series.name));
    this.heading.textContent = visible(this.options.title);
    this.drawLegend();
    this.draw();
  }

  listed() { return this.options.series.filter((series) => !this.options.runs || !RUNS_OFF.has(settingOf(series.name))); }

  visible() { return this.listed().filter((series) => !this.off.has(series.name)); }

  refresh() {
    if (!this.options.series || !this.options.runs) return;
    this.cursor = null;
    this.drawLegend();
    this.draw();
  }

  drawLegend() {
    this.legend.replaceChildren(...(this.options.small ? [] : this.listed()).map((series) => {
      const on = !this.off.has(series.name);
      return el("button", { type: "button", "aria-pressed": String(on), "data-series": series.name, onclick: () => this.toggle(series.name) },
        swatch(series.look), series.name);
    }));
  }

  toggle(name) {
    if (!this.off.delete(name)) this.off.add(name);
    this.cursor = null;
    this.drawLegend();
    this.legend.querySelector(`[data-series="${CSS.escape(name)}"]`).focus();
    this.draw();
  }

  full() {
    const xs = this.visible().flatMap((s) => s.points).filter((p) => isNumber(p.y)).map((p) => p.x);
    if (!xs.length) return [0, 1];
    const low = this.options.from ?? Math.min(...xs), high = Math.max(...xs), span = high - low || Math.abs(high) || 1;
    return this.options.kind === "points" ? [Math.min(low, 0), high + span * 0.12] : [low, low + span];
  }

  domains() {
    const xs = this.zoom || this.full(), ys = [];
    for (const series of this.visible()) for (const p of series.points) {
      if (!isNumber(p.y) || p.x < xs[0] || p.x > xs[1]) continue;
      ys.push(p.y);
      if (isNumber(p.low)) ys.push(p.low, p.high);
    }
    for (const series of this.visible()) {  // of the unsmoothed values all but the wildest
      const raw = (series.raw || []).filter((p) => p.x >= xs[0] && p.x <= xs[1]).map((p) => p.y).sort((a, b) => a - b);
      if (raw.length) ys.push(raw[Math.floor(raw.length * 0.05)], raw[Math.floor((raw.length - 1) * 0.95)]);
    }
    if (!ys.length) return [xs, [0, 1], false];
    if (this.options.log && this.visible().every((series) => series.points.every((p) => p.y > 0))) {
      const above = ys.filter((y) => y > 0);
      return [xs, [Math.min(...above) / 1.1, Math.max(...above) * 1.1], true];
    }
    const low = Math.min(...ys), high = Math.max(...ys), pad = (high - low || Math.abs(high) || 1) * 0.06;
    return [xs, [low >= 0 && low < (high - low) * 0.6 ? 0 : low - pad, high + pad]];
  }

  draw() {
    const width = Math.round(this.plot.clientWidth), height = this.options.height;
    if (!width || !this.options.series) return;
    const scale = scales(width, height, ...this.domains()), clip = `clip-${this.options.id}`;
    this.scale = scale;
    const labelled = [];
    const marks = this.visible().flatMap((series) => (series.points.length === 1 ? drawPoint(scale, series, width, labelled) : drawLine(scale, series)));
    const area = { x: MARGIN.left, y: MARGIN.top - 6, width: scale.inner.w + 12, height: scale.inner.h + 12 };
    this.brush = shape("rect", { class: "brush", y: MARGIN.top, height: scale.inner.h, width: 0 });
    this.line = shape("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    put(this.svg, { viewBox: `0 0 ${width} ${height}`, height, "aria-label": this.describe() });
    this.svg.replaceChildren(shape("clipPath", { id: clip }, shape("rect", area)),
      ...drawAxes(scale, width, height, this.options.xLabel, this.options.yLabel),
      shape("g", { "clip-path": this.zoom || this.options.kind !== "points" ? `url(#${clip})` : null }, marks), this.brush, this.line);
    this.plot.setAttribute("aria-label", `${visible(this.options.title)}. Arrow keys read values, plus and minus zoom, escape shows everything.`);
    this.plot.dataset.zoom = this.zoom ? this.zoom.map((v) => v.toPrecision(6)).join(" ") : "";
    this.resetButton.hidden = !this.zoom;
    this.point(null, undefined, false, true);
  }

  describe() {
    const parts = this.visible().map((series) => {
      const first = series.points.find((p) => isNumber(p.y)), last = series.points.findLast((p) => isNumber(p.y));
      return first === last ? `${series.name} ${short(last?.y)} at ${short(last?.x)}` : `${series.name} from ${short(first.y)} to ${short(last.y)}`;
    });
    return `${this.options.title}: ${parts.join("; ") || "nothing shown"}`;
  }

  zoomTo(range) {
    const [low, high] = this.full();
    if (range) {
      const wide = range[1] - range[0];
      const start = wide >= high - low ? low : Math.min(Math.max(range[0], low), high - wide);
      range = wide >= (high - low) * 0.999 ? null : [start, start + wide];
    }
    if (range && range[1] - range[0] < (high - low) * 1e-3) return;
    this.zoom = range;
    this.draw();
  }

  zoomBy(factor) {
    const [low, high] = this.zoom || this.full(), middle = this.cursor ?? (low + high) / 2, half = ((high - low) * factor) / 2;
    this.zoomTo([middle - half, middle + half]);
  }

  // The points under the cursor: of every line its nearest in x, or of all points the nearest one.
  near(x, y) {
    const [low, high] = this.scale.xs, distance = (p) => this.options.kind === "points" && y !== undefined
      ? Math.hypot(this.scale.x(p.x) - this.scale.x(x), this.scale.y(p.y) - y) : Math.abs(p.x - x);
    const found = [];
    for (const series of this.visible()) {
      let best = null;
      for (const p of series.points) if (isNumber(p.y) && p.x >= low && p.x <= high && (!best || distance(p) < distance(best))) best = p;
      if (best) found.push({ series, p: best });
    }
    if (!found.length) return found;
    found.sort((a, b) => distance(a.p) - distance(b.p));
    if (this.options.kind === "points") return [found[0]];
    const closest = distance(found[0].p), reach = Math.max(closest, (high - low) * 0.02);
    return found.filter((one) => distance(one.p) <= reach).sort((a, b) => b.p.y - a.p.y);
  }

  point(x, y, say, alone) {
    if (this.options.together && !alone) for (const other of CHARTS) if (other !== this && other.options.together) other.point(x, undefined, false, true);
    if (!this.scale) return;
    const found = x === null ? [] : this.near(x, y);
    this.tip.hidden = !found.length;
    this.line.setAttribute("visibility", found.length ? "visible" : "hidden");
    if (!found.length) return;
    const at = found[0].p.x, left = this.scale.x(at);
    this.cursor = at;
    put(this.line, { x1: left, x2: left });
    const value = (p) => short(p.y) + (isNumber(p.low) ? ` [${short(p.low)}, ${short(p.high)}]` : "");
    const rows = found.map(({ series, p }) => el("div", {}, swatch(series.look), series.name, el("b", {}, value(p))));
    this.tip.replaceChildren(el("div", {}, `${this.options.xLabel} ${found[0].p.note || short(at)}`), ...rows);
    const room = this.plot.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(4, Math.min(room, left > room - 14 ? left - this.tip.offsetWidth - 12 : left + 12))}px`;
    this.tip.style.top = "8px";
    if (say) this.spoken.textContent = visible(`${short(at)}: ${found.map((one) => `${one.series.name} ${value(one.p)}`).join(", ")}`);
  }

  step(direction) {
    const [low, high] = this.scale.xs, inside = (p) => isNumber(p.y) && p.x >= low && p.x <= high;
    const xs = [...new Set(this.visible().flatMap((s) => s.points).filter(inside).map((p) => p.x))].sort((a, b) => a - b);
    if (!xs.length) return;
    const here = this.cursor === null ? -1 : xs.findIndex((x) => x >= this.cursor), jump = Math.max(1, Math.round(xs.length / 60));
    const next = here < 0 ? (direction > 0 ? 0 : xs.length - 1) : here + direction * jump;
    this.point(xs[Math.min(xs.length - 1, Math.max(0, next))], undefined, true);
  }

  key(event) {
    const actions = { ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5),
      "-": () => this.zoomBy(2), Escape: () => { this.zoomTo(null); this.point(null); }, 0: () => this.zoomTo(null) };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  listen() {
    const place = (event) => { const box = this.svg.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    let start = null;
    const end = () => { start = null; this.brush?.setAttribute("width", 0); };
    this.plot.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.scale) return;
      start = place(event)[0];
      this.plot.setPointerCapture(event.pointerId);
    });
    this.plot.addEventListener("pointermove", (event) => {
      if (!this.scale) return;
      const [x, y] = place(event);
      if (start !== null && Math.abs(x - start) > 4) put(this.brush, { x: Math.min(x, start), width: Math.abs(x - start) });
      this.point(this.scale.back(x), y);
    });
    this.plot.addEventListener("pointerup", (event) => {
      const x = place(event)[0], from = start;
      end();
      if (from !== null && Math.abs(x - from) > 8) this.zoomTo([this.scale.back(Math.min(x, from)), this.scale.back(Math.max(x, from))]);
    });
    this.plot.addEventListener("pointercancel", end);
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("dblclick", () => this.zoomTo(null));
  }
}

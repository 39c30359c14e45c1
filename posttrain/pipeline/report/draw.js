// How a chart's marks are drawn: axes, lines, points with whiskers, the label beside a point.
const MARGIN = { left: 56, right: 16, top: 10, bottom: 40 };

function scales(width, height, xs, ys, log) {
  const inner = { w: Math.max(40, width - MARGIN.left - MARGIN.right), h: height - MARGIN.top - MARGIN.bottom };
  const at = (v) => (log ? Math.log10(Math.max(v, ys[0])) : v);
  return {
    x: (v) => MARGIN.left + ((v - xs[0]) / (xs[1] - xs[0])) * inner.w,
    y: (v) => MARGIN.top + inner.h - ((at(v) - at(ys[0])) / (at(ys[1]) - at(ys[0]))) * inner.h,
    back: (pixel) => xs[0] + ((pixel - MARGIN.left) / inner.w) * (xs[1] - xs[0]),
    inner, xs, ys, log,
  };
}

function drawAxes(scale, width, height, xLabel, yLabel) {
  const parts = [], bottom = height - MARGIN.bottom, right = width - MARGIN.right;
  for (const v of (scale.log ? powers : ticks)(...scale.ys, scale.inner.h / 48)) {
    parts.push(shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: scale.y(v), y2: scale.y(v) }));
    parts.push(shape("text", { x: MARGIN.left - 8, y: scale.y(v) + 4, "text-anchor": "end" }, short(v)));
  }
  for (const v of ticks(...scale.xs, scale.inner.w / 80)) {
    parts.push(shape("line", { class: "axis", x1: scale.x(v), x2: scale.x(v), y1: bottom, y2: bottom + 4 }));
    parts.push(shape("text", { x: scale.x(v), y: bottom + 18, "text-anchor": "middle" }, short(v)));
  }
  parts.push(shape("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  parts.push(shape("text", { x: MARGIN.left + scale.inner.w / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  const middle = MARGIN.top + scale.inner.h / 2;
  parts.push(shape("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, yLabel));
  return parts;
}

function path(scale, points) {
  let text = "", pen = "M";
  for (const p of points) {
    if (!isNumber(p.x) || !isNumber(p.y)) { pen = "M"; continue; }
    text += `${pen}${scale.x(p.x).toFixed(1)} ${scale.y(p.y).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

// The area between the lows and the highs of points.
function band(scale, points) {
  const at = (p, y) => `${scale.x(p.x).toFixed(1)} ${scale.y(y).toFixed(1)}`;
  return `M${[...points.map((p) => at(p, p.high)), ...[...points].reverse().map((p) => at(p, p.low))].join("L")}Z`;
}

function drawLine(scale, series) {
  const style = look(series.look), line = { fill: "none", "stroke-linejoin": "round", "stroke-dasharray": style.dash || null };
  const parts = [];
  if (isNumber(series.points[0]?.low)) parts.push(shape("path", { opacity: 0.15, paint: { fill: style.colour }, d: band(scale, series.points) }));
  if (series.raw) parts.push(shape("path", { ...line, "stroke-width": 1, opacity: 0.28, paint: { stroke: style.colour }, d: path(scale, series.raw) }));
  parts.push(shape("path", { ...line, class: "curve", "data-series": series.name, "stroke-width": 2, paint: { stroke: style.colour }, d: path(scale, series.points) }));
  if (series.ends) for (const [nth, p] of [[0, series.points[0]], [1, series.points.at(-1)]])
    parts.push(shape("circle", { cx: scale.x(p.x), cy: scale.y(p.y), r: nth ? 5 : 3, paint: { fill: style.colour } }));
  return parts;
}

function drawPoint(scale, series, width, labelled) {
  const style = look(series.look), p = series.points[0], x = scale.x(p.x), parts = [];
  const stroke = { "stroke-width": 2, paint: { stroke: style.colour } };
  if (isNumber(p.low)) {
    const low = scale.y(p.low), high = scale.y(p.high);
    parts.push(shape("line", { class: "whisker", x1: x, x2: x, y1: low, y2: high, ...stroke }));
    for (const y of [low, high]) parts.push(shape("line", { x1: x - 5, x2: x + 5, y1: y, y2: y, ...stroke }));
  }
  parts.push(shape("circle", { class: "point", "data-series": series.name, cx: x, cy: scale.y(p.y), r: 5, paint: { fill: style.colour } }));
  const room = x + 12 + series.name.length * 7 < width - 4;
  // A name that would overlap another one is left out; the legend and the cursor show it.
  const wide = series.name.length * 7, left = room ? x + 10 : x - 10 - wide, box = { left, right: left + wide, y: scale.y(p.y) };
  if (labelled.some((other) => box.left < other.right && other.left < box.right && Math.abs(box.y - other.y) < 14)) return parts;
  labelled.push(box);
  parts.push(shape("text", { class: "strong", x: room ? x + 10 : x - 10, y: box.y + 4, "text-anchor": room ? "start" : "end" }, series.name));
  return parts;
}

// A row of a table as a picture, as wide as its box: a mark at `value`, whiskers from `low` to `high`, on 0 ... `most`.
function whiskers(entry, [least, most], label) {
  const height = 26, middle = height / 2, style = look(entry.look), at = (v) => `${(4 + ((Math.max(least, v) - least) / (most - least || 1)) * 92).toFixed(2)}%`;
  const line = (a, b, y1, y2, wide, opacity) => shape("line", { x1: at(a), x2: at(b), y1, y2, "stroke-width": wide, opacity, paint: { stroke: style.colour } });
  return shape("svg", { height, role: "img", "aria-label": label, class: "whiskers" },
    shape("line", { class: "grid", x1: at(least), x2: at(most), y1: middle, y2: middle }),
    entry.bar ? line(0, entry.value, middle, middle, 12, 0.35) : null,
    entry.box ? line(entry.box[0], entry.box[1], middle, middle, 12, 0.35) : null,
    line(entry.low, entry.high, middle, middle, 2, 1),
    line(entry.low, entry.low, middle - 6, middle + 6, 2, 1),
    line(entry.high, entry.high, middle - 6, middle + 6, 2, 1),
    shape("circle", { cx: at(entry.value), cy: middle, r: 4.5, paint: { fill: style.colour } }));
}

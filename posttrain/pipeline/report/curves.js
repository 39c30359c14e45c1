// Learning curves, the frontier of reward and KL, and length.
// A running mean over `reach` points to either side; near the ends over fewer.
function smooth(values, reach) {
  if (!reach) return values;
  return values.map((value, nth) => {
    if (!isNumber(value)) return null;
    const around = values.slice(Math.max(0, nth - reach), nth + reach + 1).filter(isNumber);
    return around.reduce((a, b) => a + b, 0) / around.length;
  });
}

function seriesOf(metric, across, reach) {
  return DATA.curves.filter((one) => one.columns[metric]).map((one) => {
    const steps = one.columns.step, last = steps.at(-1) || 1, xs = across === "share" ? steps.map((s) => s / last) : steps;
    const points = (values) => values.map((y, nth) => ({ x: xs[nth], y })).filter((p) => isNumber(p.y));
    return { name: one.label, look: lookOf(one.label), points: points(smooth(one.columns[metric], reach)), raw: reach ? points(one.columns[metric]) : null };
  }).filter((series) => series.points.length > 1);
}

const SCHEDULES = ["lr", "beta"];  // not measured, so there is nothing to smooth
const FRONT = ["reward", "loss", "accuracy", "margin", "kl_k3", "entropy", "length", "groups_with_signal", "clip_fraction", "grad_norm", "lr"];
const MULTIPLES = 8;

function metricNames() {
  const skip = ["step"], runs = DATA.curves.filter((one) => one.path.includes("/"));
  const names = [...new Set([...runs, ...DATA.curves].flatMap((one) => Object.keys(one.columns)))].filter((name) => !skip.includes(name));
  return [...FRONT.filter((name) => names.includes(name)), ...names.filter((name) => !FRONT.includes(name)).sort()];
}

function startCurves() {
  const names = metricNames(), chosen = byId("metric");
  if (!names.length) { byId("curves").hidden = true; return; }
  startRuns();
  const chart = new Chart(byId("curves-chart"), { id: "curves", height: 360, runs: true, together: "step" });
  const small = names.filter((name) => FRONT.includes(name)).slice(0, MULTIPLES).map((name) =>
    [name, new Chart(byId("multiples"), { id: `small-${name}`, height: 170, runs: true, together: "step", small: true })]);
  chosen.append(...names.map((name) => el("option", { value: name, title: DATA.about[name] }, name)));
  const show = (event) => {
    const across = byId("across").value, reach = Number(byId("smoothing").value), metric = chosen.value, log = byId("log").checked;
    byId("smoothing-value").textContent = reach ? `± ${reach} points` : "off";
    const xLabel = across === "share" ? "share of the run" : "step";
    const each = Math.max(...DATA.curves.filter((one) => one.columns[metric]).map((one) => one.each));
    byId("metric-about").textContent = DATA.about[metric] ? visible(`${metric}: ${DATA.about[metric]}`) : "";
    byId("curves-note").textContent = "Drag across a chart to zoom; the names switch runs off and on. A cursor is in all charts of steps."
      + (each > 1 ? ` Of long runs a point is the mean of up to ${each} steps.` : "");
    for (const [name, one] of event?.target === chosen ? [[metric, chart]] : [[metric, chart], ...small])
      one.show({ title: name, yLabel: one === chart ? name : "", xLabel, log,
        series: seriesOf(name, across, SCHEDULES.includes(name) ? 0 : reach).map((series) => (one === chart ? series : { ...series, raw: null })) });
  };
  for (const id of ["metric", "across", "smoothing", "log"]) byId(id).addEventListener("input", show);
  show();
}

// The list of runs that all charts show; of many settings at first the reference and the best ones.
const AT_FIRST = 8;
function startRuns() {
  const reference = settingOf(DATA.reference), best = DATA.decision.rows.map((row) => row.setting);
  const first = SETTINGS.length <= AT_FIRST ? SETTINGS : [...new Set([reference, ...best])].filter((name) => SETTINGS.includes(name)).slice(0, AT_FIRST);
  const labels = SETTINGS.map((name) => el("label", {}, el("input", { type: "checkbox", value: name, checked: first.includes(name) }), swatch(SETTINGS.indexOf(name)), name));
  const boxes = labels.map((label) => label.querySelector("input"));
  const show = () => {
    RUNS_OFF.clear();
    for (const box of boxes) if (!box.checked) RUNS_OFF.add(box.value);
    for (const chart of CHARTS) chart.refresh();
  };
  byId("runs-list").append(...labels);
  byId("runs-list").addEventListener("input", show);
  byId("runs-filter").addEventListener("input", (event) => {
    for (const label of labels) label.hidden = !label.textContent.toLowerCase().includes(event.target.value.trim().toLowerCase());
  });
  for (const [id, on] of [["runs-all", true], ["runs-none", false]]) byId(id).addEventListener("click", () => {
    for (const [nth, box] of boxes.entries()) if (!labels[nth].hidden) box.checked = on;
    show();
  });
  byId("runs").hidden = SETTINGS.length < 2;
  show();
}

// Policies with a far larger KL than three quarters of all are switched off at first: they would squeeze the others together.
function farAway(policies) {
  const kls = policies.map((one) => one.metrics.kl_k1), sorted = [...kls].sort((a, b) => a - b);
  const usual = Math.max(0, sorted[Math.floor(0.75 * (sorted.length - 1))]);
  return kls.map((kl) => kl > 1 && kl > 5 * usual);
}

function startFrontier() {
  const measured = DATA.policies.map((one) => ({ ...one, look: lookOf(one.label) })).filter((one) => isNumber(one.metrics.kl_k1) && isMeasured(one.metrics));
  const away = farAway(measured), names = measured.filter((_, nth) => away[nth]).map((one) => one.label);
  const chart = new Chart(byId("frontier-chart"), { id: "frontier", kind: "points", runs: true });
  chart.show({
    title: `Policies: ${DATA.score} against KL`, xLabel: `KL to ${DATA.reference}, nats per completion`, yLabel: DATA.score,
    series: measured.map((one, nth) => ({ name: one.label, look: one.look, away: away[nth],
      points: [{ x: one.metrics.kl_k1, y: one.metrics.score, low: one.metrics.score_low, high: one.metrics.score_high }] })),
  });
  byId("frontier-note").textContent = "Up is better, left is nearer to the reference: a run above and to the left of another got more for less."
    + (names.length ? ` ${names.join(", ")} ${names.length > 1 ? "lie far to the right and are" : "lies far to the right and is"} off at first.` : "");
  const paths = DATA.curves.filter((one) => one.columns.reward && (one.columns.kl_k3 || one.columns.kl_k1)).map((one) => {
    const kl = smooth(one.columns.kl_k3 || one.columns.kl_k1, 6), reward = smooth(one.columns.reward, 6), steps = one.columns.step;
    const points = kl.map((x, nth) => ({ x, y: reward[nth], note: `${short(x)}, step ${figure(Math.round(steps[nth]))}` }));
    return { name: one.label, look: lookOf(one.label), ends: true, points: points.filter((p) => isNumber(p.x) && isNumber(p.y)) };
  }).filter((series) => series.points.length > 1);
  if (!paths.length) return;
  new Chart(byId("path-chart"), { id: "path", kind: "points", runs: true })
    .show({ title: "Training: reward against KL", xLabel: "KL per token", yLabel: "reward", series: paths });
}

function startLength() {
  const policies = DATA.policies, most = Math.max(1, ...policies.map((one) => one.lengths.p95));
  const rows = policies.map((one) => {
    const look = lookOf(one.label), q = one.lengths, label = `${one.label}: mean ${short(q.mean)}, 5 to 95 percent ${short(q.p5)} to ${short(q.p95)} tokens`;
    const picture = whiskers({ look, value: q.mean, low: q.p5, high: q.p95, box: [q.p25, q.p75] }, [0, most], label);
    return { name: [swatch(look), one.label], cells: [{ of: picture, kind: "picture" }, fixed(q.mean, 1), ...[q.p50, q.p5, q.p95].map((v) => fixed(v, 0))] };
  });
  const titles = ["policy", { text: `0 to ${short(most)} tokens`, left: true }, "mean", "median", "5 %", "95 %"];
  byId("length-spread").append(table("Length of sampled completions", titles, rows, true),
    el("p", { class: "note" }, "Tokens of the sampled completions on held-out prompts: mean (dot), middle half (bar), 5 to 95 % (whiskers)."));
}

// Whether a reward judges the prompts; if none does, the scores say nothing.
const isMeasured = (metrics) => metrics.judged !== 0;
const unread = (metrics) => (metrics.parsed === 0 ? " (no readable answer)" : "");
const NOT_MEASURED = "not measured";

// The table that decides: a row for each setting with its seeds pooled, and its difference to one of them.
function resultColumns(rows, against) {
  const sampled = [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))].filter((name) => /^pass_at_\d+$/.test(name) && name !== "pass_at_1")
    .sort((left, right) => left.slice(8) - right.slice(8)).slice(-1);
  const share = (key, text, about, digits = 3) => ({ text, about, of: (row) => row.metrics[key], value: (row) => fixed(row.metrics[key], digits) });
  const scored = (key, text, about) => ({ ...share(key, text, about), value: (row) => isMeasured(row.metrics) ? fixed(row.metrics[key], 3) : NOT_MEASURED });
  const found = DATA.decision.against[against] || {}, seeds = rows.some((row) => row.metrics.seeds > 1);
  const difference = (row) => { const [mean, low, high] = found[row.setting]; return `${signed(mean)} [${signed(low)}, ${signed(high)}]`; };
  return [
    ...(seeds ? [share("seeds", "seeds", "trainings that differ in their seeds alone", 0)] : []),
    { text: `${DATA.score} [95 %]`, about: "mean of the sampled completions; the interval is over prompts, and over seeds where there are several", kind: "whole", of: (row) => row.metrics.score,
      value: (row) => !isMeasured(row.metrics) ? NOT_MEASURED : `${fixed(row.metrics.score, 3)} [${fixed(row.metrics.low, 3)}, ${fixed(row.metrics.high, 3)}]${unread(row.metrics)}` },
    { text: `minus ${against}`, about: `the paired difference to ${against} on the same prompts, 95 % after Holm's correction, as posttrain compare tests it`, kind: "whole",
      of: (row) => found[row.setting]?.[0], value: (row) => row.setting in found ? difference(row) : "–" },
    { text: "verdict", about: "(1 seed): one side has a single training, so the difference is between these trainings; other seeds may differ", left: true, kind: "whole", of: (row) => found[row.setting]?.[3] ?? "", value: (row) => (found[row.setting]?.[3] ?? "").replaceAll(" (1 seed)", "\u00a0(1\u00a0seed)") },
    ...sampled.map((key) => scored(key, `pass@${key.slice(8)}`, "a right completion among so many")),
    scored("greedy", "greedy", "the same of the likeliest completion of each prompt"),
    ...DATA.extra.map((key) => ({ ...share(key, key.replace(/^reward_/, ""), "mean of the sampled completions, with its 95 % interval; completions on which it failed are left out and counted"), value: (row) => partCell(row.metrics, key) })),
    share("truncated", "truncated", "share of completions that did not end by themselves"),
    share("length", "length", "mean tokens of a completion", 1),
    share("kl", `KL to ${DATA.reference}`, "nats per completion, from the policy's own samples", 2),
  ];
}

// A part of the reward or a metric: its mean, interval, and how many completions have no value of it.
function partCell(metrics, key) {
  const [low, high, failed] = ["_low", "_high", "_failed"].map((end) => metrics[key + end]);
  const interval = low === undefined || high === undefined ? "" : ` [${fixed(low, 3)}, ${fixed(high, 3)}]`;
  return `${fixed(metrics[key], 3)}${interval}${failed ? ` (${figure(failed)} failed)` : ""}`;
}

// The rows of the table with all figures of their trainings, of several seeds the means.
function settings() {
  const policies = new Map(DATA.policies.map((one) => [one.label, one.metrics]));
  return DATA.decision.rows.map((row) => {
    const mine = row.trained.map((label) => policies.get(label)), keys = Object.keys(mine[0]).filter((key) => mine.every((one) => key in one));
    const means = Object.fromEntries(keys.map((key) => [key, mine.reduce((sum, one) => sum + one[key], 0) / mine.length]));
    return { ...row, look: lookOf(row.policies[0]), metrics: { ...means, ...row.metrics } };
  });
}

function startResults() {
  const rows = settings(), choices = Object.keys(DATA.decision.against);
  byId("results-note").textContent = rows.length ? `${figure(DATA.shown.prompts_in_all)} prompts, the same for every policy. Whiskers are 95 % intervals.`
    : DATA.errors.length ? "No policy could be read." : "params.yaml evaluates no policy (evaluate.policies).";
  if (DATA.rewards.length) byId("rewards").textContent = visible(`Accuracy on held-out pairs: ${DATA.rewards.map((one) => `${one.run} ${fixed(one.accuracy, 3)}`).join(", ")}.`);
  if (DATA.gain.length) byId("gain").append(`The parts of the gain over ${DATA.decision.base}:`, el("ul", {}, DATA.gain.map((part) => el("li", {}, part))));
  byId("ratings").append(...DATA.ratings.map(ratingTable));
  byId("against").append(...choices.map((name) => el("option", {}, name)));
  byId("against").value = DATA.decision.base;
  byId("against-label").hidden = choices.length < 2;
  const chosen = { against: DATA.decision.base, by: null, down: true };
  const known = rows.flatMap((row) => [row.metrics.low, row.metrics.high]);
  const scale = DATA.score === "pass@1" ? [0, 1] : [Math.min(0, ...known), Math.max(0, ...known)];
  const show = () => byId("results-table").replaceChildren(...(rows.length || DATA.errors.length ? [resultTable(rows, scale, chosen, show)] : []));
  byId("against").addEventListener("change", (event) => { chosen.against = event.target.value; show(); });
  show();
}

function resultTable(rows, scale, chosen, show) {
  const columns = resultColumns(rows, chosen.against), by = columns.find((column) => column.text === chosen.by);
  const order = (left, right) => (left > right ? 1 : left < right ? -1 : 0) * (chosen.down ? -1 : 1);
  const sorted = by ? [...rows].sort((left, right) => order(by.of(left) ?? -Infinity, by.of(right) ?? -Infinity)) : rows;
  const lines = sorted.map((row) => {
    const m = row.metrics, score = columns.find((column) => column.kind === "whole").value(row);
    const picture = !isMeasured(m) ? NOT_MEASURED : whiskers({ look: row.look, value: m.score, low: m.low, high: m.high, bar: true }, scale, `${row.setting}: ${score}`);
    return { attributes: { "data-policy": row.setting }, name: [swatch(row.look), row.setting], about: row.policies.length > 1 ? row.policies.join(", ") : row.path,
      cells: [{ of: picture, kind: "picture" }, ...columns.map((column) => ({ of: column.value(row), kind: column.kind }))] };
  });
  for (const one of DATA.errors) {
    const blank = columns.map(() => "–");
    lines.push({ attributes: { "data-policy": one.label, "data-error": "yes" }, name: one.label, about: one.error, cells: [{ of: one.error, kind: "wrap" }, ...blank] });
  }
  const titles = ["setting", { text: scale.map(short).join(" to "), left: true }, ...columns];
  const drawn = table("Settings and their figures", titles, lines, true);
  drawn.querySelectorAll("thead th").forEach((head, place) => {
    const column = columns[place - 2];
    if (!column) return;
    const down = chosen.by === column.text ? !chosen.down : true;
    if (chosen.by === column.text) head.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
    head.replaceChildren(el("button", { type: "button", class: "sort", onclick: () => { Object.assign(chosen, { by: column.text, down }); show(); } }, breakable(column.text)));
  });
  return drawn;
}

// One table of ratings: points of Elo with their intervals, and the ranks that they leave open.
function ratingTable(one) {
  const scale = [Math.min(...one.policies.map((row) => row.rating_low)), Math.max(...one.policies.map((row) => row.rating_high))];
  const rows = one.policies.map((row) => {
    const text = `${fixed(row.rating, 0)} [${fixed(row.rating_low, 0)}, ${fixed(row.rating_high, 0)}]`;
    const picture = whiskers({ look: lookOf(row.policy), value: row.rating, low: row.rating_low, high: row.rating_high }, scale, `${row.policy}: ${text}`);
    return { attributes: { "data-rated": row.policy }, name: row.policy,
      cells: [{ of: picture, kind: "picture" }, { of: text, kind: "whole" }, row.rank_low === row.rank_high ? String(row.rank_low) : `${row.rank_low} to ${row.rank_high}`] };
  });
  return el("div", {}, el("h3", {}, `Ratings ${one.name}, by ${one.decided_by}`),
    table(`Ratings ${one.name}`, ["policy", { text: scale.map((value) => fixed(value, 0)).join(" to "), left: true }, { text: "rating [95 %]", about: "Bradley-Terry in points of Elo, mean 0" }, "rank"], rows, true),
    ...one.said.map((text) => el("p", {}, text)));
}

// Tasks of lm-eval: a row for each task and metric, a column for each run.
function startBenchmarks() {
  const { runs, rows } = DATA.lm_eval;
  byId("benchmarks-table").append(table("Tasks of lm-eval", ["task and metric", ...runs.map((one) => ({ text: one.run, about: one.model }))], rows, true));
}

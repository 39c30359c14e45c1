// Whether any completion has an answer that could be read; if none has, its scores say nothing.
const isMeasured = (metrics) => metrics.parsed !== 0;
const NOT_MEASURED = "not measured";

// The table of policies, with the score and its interval drawn to one scale.
function resultColumns(policies) {
  const sampled = [...new Set(policies.flatMap((one) => Object.keys(one.metrics)))].filter((name) => /^pass_at_\d+$/.test(name) && name !== "pass_at_1")
    .sort((left, right) => left.slice(8) - right.slice(8)).slice(-1);
  const share = (key, title, about) => ({ text: title, about, value: (m) => fixed(m[key], 3) });
  const scored = (key, title, about) => ({ text: title, about, value: (m) => isMeasured(m) ? fixed(m[key], 3) : NOT_MEASURED });
  return [
    { text: `${DATA.score} [95 %]`, about: "mean of the sampled completions, with a bootstrap interval over prompts",
      value: (m) => !isMeasured(m) ? NOT_MEASURED : `${fixed(m.score, 3)} [${fixed(m.score_low, 3)}, ${fixed(m.score_high, 3)}]` },
    ...sampled.map((key) => scored(key, `pass@${key.slice(8)}`, "a right completion among so many")),
    scored("greedy", "greedy", "the same of the likeliest completion of each prompt"),
    ...DATA.extra.map((key) => share(key, key.replace(/^reward_/, "").replaceAll("_", " "), "mean of the sampled completions")),
    share("truncated", "truncated", "share of completions that did not end by themselves"),
    { text: "length", about: "mean tokens of a completion", value: (m) => fixed(m.length, 1) },
    { text: `KL to ${DATA.reference}`, about: "nats per completion, from the policy's own samples", value: (m) => fixed(m.kl_k1, 2) },
  ];
}

// With more policies than this the table alone says it better.
const TILES = 6;

function startResults() {
  const policies = DATA.policies, columns = resultColumns(policies);
  const count = policies.length ? DATA.stages.at(-1).numbers : null;
  if (!count) {
    byId("results-note").textContent = DATA.errors.length ? "No policy could be read." : "params.yaml evaluates no policy (evaluate.policies).";
  } else {
  byId("results-note").textContent = `${figure(count.prompts)} prompts, the same for every policy. Whiskers are 95 % intervals.`;
  }
  if (DATA.gain.length) byId("gain").append(`What the gain over ${DATA.reference} consists of:`, el("ul", {}, DATA.gain.map((part) => el("li", {}, part))));
  const tile = (value, text) => el("li", {}, el("b", {}, value), el("span", {}, text));
  byId("tiles").append(...(policies.length > TILES ? [] : policies).map((one) => tile(!isMeasured(one.metrics) ? NOT_MEASURED : fixed(one.metrics.score, 3), `${DATA.score} of ${one.label}`)),
    ...DATA.rewards.map((one) => tile(fixed(one.accuracy, 3), `accuracy of ${one.run} on held-out pairs`)));
  const known = policies.flatMap((one) => [one.metrics.score_low, one.metrics.score_high]);
  const scale = DATA.score === "pass@1" ? [0, 1] : [Math.min(0, ...known), Math.max(0, ...known)];
  const rows = policies.map((one, nth) => {
    const m = one.metrics, label = `${one.label}: ${columns[0].value(m)}`;
    const picture = !isMeasured(m) ? NOT_MEASURED : whiskers({ look: nth, value: m.score, low: m.score_low, high: m.score_high, bar: true }, scale, label);
    return { attributes: { "data-policy": one.label }, name: [swatch(nth), one.label], about: one.path,
      cells: [{ of: picture, kind: "picture" }, ...columns.map((column, k) => ({ of: column.value(m), kind: k ? null : "whole" }))] };
  });
  const width = columns.length + 1;
  for (const one of DATA.errors) {
    const blank = Array.from({ length: width - 1 }, () => "–");
    rows.push({ attributes: { "data-policy": one.label, "data-error": "yes" }, name: one.label, about: one.error, cells: [{ of: one.error, kind: "wrap" }, ...blank] });
  }
  for (const one of DATA.tables) {
    const [titles, ...lines] = one.cells;
    byId("other-tables").append(el("h3", {}, one.name), table(one.name, titles, lines.map(([name, ...cells]) => ({ name, cells })), true));
  }
  if (rows.length) byId("results-table").append(table("Policies and their figures", ["policy", { text: scale.map(short).join(" to "), left: true }, ...columns], rows, true));
  byId("ratings").append(...DATA.ratings.map(ratingTable));
}

// One table of ratings: points of Elo with their intervals, and the ranks that they leave open.
function ratingTable(one) {
  const scale = [Math.min(...one.policies.map((row) => row.rating_low)), Math.max(...one.policies.map((row) => row.rating_high))];
  const nth = (label) => DATA.policies.findIndex((policy) => policy.label === label);
  const rows = one.policies.map((row) => {
    const text = `${fixed(row.rating, 0)} [${fixed(row.rating_low, 0)}, ${fixed(row.rating_high, 0)}]`;
    const picture = whiskers({ look: Math.max(0, nth(row.policy)), value: row.rating, low: row.rating_low, high: row.rating_high }, scale, `${row.policy}: ${text}`);
    return { attributes: { "data-rated": row.policy }, name: row.policy,
      cells: [{ of: picture, kind: "picture" }, { of: text, kind: "whole" }, row.rank_low === row.rank_high ? String(row.rank_low) : `${row.rank_low} to ${row.rank_high}`] };
  });
  return el("div", {}, el("h3", {}, `Ratings ${one.name}, by ${one.decided_by}`),
    table(`Ratings ${one.name}`, ["policy", { text: scale.map((value) => fixed(value, 0)).join(" to "), left: true }, { text: "rating [95 %]", about: "Bradley-Terry in points of Elo, mean 0" }, "rank"], rows, true));
}

// Tasks of lm-eval: a row for each task and metric, a column for each run.
function startBenchmarks() {
  const { runs, rows } = DATA.lm_eval;
  byId("benchmarks-table").append(table("Tasks of lm-eval", ["task and metric", ...runs.map((one) => ({ text: one.run, about: one.model }))], rows, true));
}

// The table of policies, with pass@1 and its interval drawn to one scale.
function resultColumns(policies) {
  const sampled = [...new Set(policies.flatMap((one) => Object.keys(one.metrics)))].filter((name) => /^pass_at_\d+$/.test(name) && name !== "pass_at_1");
  const share = (key, title, about) => ({ title, about, text: (m) => fixed(m[key], 3) });
  return [
    { title: "pass@1 [95 %]", about: "share of sampled completions that are right, with a bootstrap interval over prompts",
      text: (m) => `${fixed(m.pass_at_1, 3)} [${fixed(m.pass_at_1_low, 3)}, ${fixed(m.pass_at_1_high, 3)}]` },
    ...sampled.map((key) => share(key, `pass@${key.slice(8)}`, "a right completion among so many")),
    share("greedy", "greedy", "share of prompts whose likeliest completion is right"),
    share("format", "format", "share of completions in the asked form"),
    share("truncated", "truncated", "share of completions that did not end by themselves"),
    { title: "length", about: "mean tokens of a completion", text: (m) => fixed(m.length, 1) },
    share("working", "with working", "share of completions that show a calculation"),
    share("right_given_working", "right if working", "share of those that are right"),
    { title: `KL to ${DATA.reference}`, about: "nats per completion, from the policy's own samples", text: (m) => fixed(m.kl_k1 ?? 0, 2) },
  ];
}

function startResults() {
  const policies = DATA.policies, columns = resultColumns(policies);
  const count = DATA.stages.at(-1).numbers;
  byId("results-note").textContent = `${figure(count.prompts)} held-out prompts, the same for every policy. Whiskers are 95 % intervals.`;
  byId("gain").textContent = DATA.gain;
  const tile = (value, text) => el("li", {}, el("b", {}, value), el("span", {}, text));
  byId("tiles").append(...policies.map((one) => tile(fixed(one.metrics.pass_at_1, 3), `pass@1 of ${one.label}`)),
    DATA.reward_model ? tile(fixed(DATA.reward_model.accuracy, 3), "accuracy of the reward model on held-out pairs") : "");
  const head = el("tr", {}, el("th", { scope: "col" }, "policy"), el("th", { scope: "col", class: "left" }, "pass@1, 0 to 1"),
    columns.map((column) => el("th", { scope: "col", title: column.about }, column.title)));
  const rows = policies.map((one, nth) => {
    const m = one.metrics, label = `${one.label}: ${columns[0].text(m)}`;
    const picture = whiskers({ look: nth, value: m.pass_at_1, low: m.pass_at_1_low, high: m.pass_at_1_high, bar: true }, 1, label);
    return el("tr", { "data-policy": one.label }, el("th", { scope: "row", title: one.path }, swatch(nth), one.label),
      el("td", { class: "left" }, picture), columns.map((column) => el("td", {}, column.text(m))));
  });
  byId("results-table").append(el("table", {}, el("caption", { class: "hidden" }, "Policies and their figures"), el("thead", {}, head), el("tbody", {}, rows)));
}

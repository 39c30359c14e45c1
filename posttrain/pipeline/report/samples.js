// What the policies answered to the same prompts, and why it is wrong; everything a policy wrote is put in as text.
const AT_ONCE = 20, MOST_POLICIES = 4;

// Outcomes are right or wrong; other scores are shown as numbers.
const OUTCOMES = DATA.score === "pass@1";
const KINDS = [...(OUTCOMES ? ["right", "wrong answer"] : []), "no readable answer", "failed", "cut"];

// The share of right samples of a policy among all of a prompt, or their mean score; NaN, which no filter takes, if it has none.
const share = (row, nth) => row.by[nth]?.mean ?? NaN;
const lower = (sample) => (sample.low ??= sample.text.toLowerCase());
const option = (value, text) => el("option", { value }, text);

function startSamples() {
  const best = DATA.decision.rows.flatMap((row) => row.policies), names = DATA.policies.map((one) => one.label);
  const first = [DATA.reference, ...best].filter((label, place, all) => names.includes(label) && all.indexOf(label) === place).slice(0, MOST_POLICIES);
  const state = { shown: AT_ONCE, chosen: [] };
  const boxes = names.map((label) => el("input", { type: "checkbox", value: label, checked: first.includes(label) }));
  byId("who").append(...boxes.map((box, nth) => el("label", {}, box, swatch(lookOf(names[nth])), names[nth])));
  const { prompts_in_all, samples, samples_in_all, with_texts } = DATA.shown, some = samples < samples_in_all;
  byId("completions-note").textContent = `${figure(DATA.prompts.length)} of ${counted(prompts_in_all, "prompt")} with ${some ? `the first ${samples} of ` : ""}${counted(samples_in_all, "sample")} and the likeliest completion.`
    + (with_texts < DATA.prompts.length ? ` Completions of the first ${figure(with_texts)} prompts; all are in results/POLICY/rollouts.parquet.` : "")
    + " Counts and filters are over all samples of a prompt.";

  const choose = () => {
    const on = boxes.filter((box) => box.checked).length;
    for (const box of boxes) box.disabled = !box.checked && on >= MOST_POLICIES;
    state.chosen = boxes.flatMap((box, nth) => (box.checked ? [nth] : []));
    const before = { of: byId("of").value, order: byId("order").value };
    byId("of").replaceChildren(...state.chosen.map((nth) => option(names[nth], names[nth])));
    const pairs = state.chosen.flatMap((a) => state.chosen.filter((b) => b !== a).map((b) => [a, b]));
    byId("order").replaceChildren(option("", "as evaluated"), ...pairs.map(([a, b]) => option(`${a} ${b}`, `${names[b]} better than ${names[a]}`)));
    for (const [id, value] of Object.entries(before)) if ([...byId(id).options].some((one) => one.value === value)) byId(id).value = value;
  };
  const matches = () => {
    const query = byId("search").value.trim().toLowerCase(), kind = byId("kind").value, of = names.indexOf(byId("of").value), order = byId("order").value;
    const found = DATA.prompts.filter((row) => {
      const asked = !kind || (kind === "half" ? share(row, of) < 0.5 : row.by[of]?.kinds[kind] > 0);
      return asked && (!query || `${row.id}\n${row.prompt}\n${row.answer}`.toLowerCase().includes(query)
        || state.chosen.some((nth) => row.by[nth]?.samples.some((sample) => lower(sample).includes(query))));
    });
    if (!order) return found;
    const [a, b] = order.split(" ").map(Number), rise = (row) => share(row, b) - share(row, a);
    return found.filter((row) => rise(row) > 0).sort((left, right) => rise(right) - rise(left));
  };
  const show = () => {
    const query = byId("search").value.trim(), found = matches(), wanted = { of: names.indexOf(byId("of").value), kind: byId("kind").value };
    byId("found").textContent = `${figure(found.length)} of ${counted(DATA.prompts.length, "prompt")}`;
    byId("prompts").replaceChildren(...found.slice(0, state.shown).map((row) => card(row, state.chosen, wanted, query)));
    byId("more").hidden = found.length <= state.shown;
    byId("more").textContent = `Show ${Math.min(AT_ONCE, found.length - state.shown)} more`;
  };
  const again = () => { state.shown = AT_ONCE; choose(); show(); };
  byId("kind").append(option("", "any"), ...KINDS.map((kind) => option(kind, kind)), ...(OUTCOMES ? [option("half", "right in less than half")] : []));
  byId("filters").addEventListener("input", again);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(again));
  byId("more").addEventListener("click", () => {
    const next = state.shown;
    state.shown += AT_ONCE;
    show();
    byId("prompts").children[next]?.focus({ preventScroll: true });
  });
  again();
}

// evaluate.settings.completions: none
function hideSamples() {
  byId("completions-note").textContent = "Prompts and completions were not kept (evaluate.settings.completions).";
  for (const id of ["filters", "found", "more"]) byId(id).hidden = true;
}

function card(row, chosen, wanted, query) {
  const expected = row.answer ? el("small", {}, "  answer ", el("b", {}, marked(row.answer, query))) : null;
  return el("li", { tabindex: "-1", "data-prompt": row.id }, el("p", { class: "asked" }, marked(row.prompt, query), expected),
    el("div", { class: "answers" }, chosen.map((nth) => answers(DATA.policies[nth].label, row.by[nth], nth === wanted.of ? wanted.kind : "", query))));
}

// The samples of one policy, one at a time: at first one of the wanted kind that has what was searched for, if there is one.
function answers(label, mine, kind, query) {
  const host = el("article", { "data-policy": label, "aria-label": label });
  if (!mine) return put(host, {}, [el("h3", {}, swatch(lookOf(label)), label), el("p", { class: "note" }, "not measured")]);
  const { samples, kinds, mean } = mine, all = DATA.shown.samples_in_all, low = query.toLowerCase();
  const summary = OUTCOMES ? `${kinds.right || 0} of ${all} right` : `mean of ${all} ${fixed(mean, 3)}`;
  if (!samples.length) return put(host, {}, [el("h3", {}, el("span", {}, swatch(lookOf(label)), label), el("small", {}, summary)), el("p", { class: "note" }, "its completions are not on this page")]);
  const has = (sample) => lower(sample).includes(low), fits = (sample) => !kind || (kind === "cut" ? sample.cut : sample.kind === kind);
  const preferred = [(s) => fits(s) && has(s), has, fits].map((test) => samples.findIndex(test)).find((place) => place >= 0) ?? 0;
  const show = (place, moved) => {
    const sample = samples[place], name = sample.greedy ? "likeliest" : `sample ${place + 1} of ${all}`;
    const verdict = sample.kind === "scored" ? `score ${fixed(sample.score, 3)}` : sample.kind === "right" ? "✓ right" : `✗ ${sample.kind}`;
    const step = (by, text, what) => el("button", { type: "button", class: "small", "aria-label": `${what} sample of ${label}`,
      onclick: () => show((place + by + samples.length) % samples.length, by) }, text);
    const why = DATA.reasons[sample.reason] || "", parts = sample.parts.map(([part, value, status]) => `${part}${value === null ? "" : ` ${short(value)}`}${status === "ok" ? "" : ` (${status})`}`);
    host.replaceChildren(el("h3", {}, el("span", {}, swatch(lookOf(label)), label),
        el("small", {}, summary)),
      el("div", { class: "steps" }, step(-1, "‹", "previous"), el("span", {}, name), step(1, "›", "next"),
        copying("copy", sample.text, "copy the completion"), copying("why", `posttrain why ${sample.id}`, `copy: posttrain why ${sample.id}`)),
      el("p", { class: "parts" }, el("span", { class: `badge ${sample.kind === "right" ? "right" : sample.kind === "scored" ? "" : "wrong"}` }, verdict), " ",
        sample.cut && [el("span", { class: "badge wrong" }, "cut"), " "], why && el("b", {}, `${why}. `), [...parts, counted(sample.tokens, "token")].join(", ")),
      reachable(el("pre", { class: sample.text ? null : "empty" }, sample.text === "" ? "(nothing)" : marked(sample.text, query)), `completion of ${label}`));
    if (!moved) return;
    host.querySelectorAll(".steps button")[moved > 0 ? 1 : 0].focus();
    byId("spoken").textContent = visible(`${label} ${name}: ${verdict} ${why}`);
  };
  show(preferred);
  return host;
}

// A long text scrolls in its box, which the keyboard then has to reach.
const LONG = { letters: 250, lines: 9 };

function reachable(text, name) {
  const shown = text.textContent;
  if (shown.length <= LONG.letters && shown.split("\n").length <= LONG.lines) return text;
  return put(text, { tabindex: "0", role: "group", "aria-label": name }, [...text.childNodes]);
}

function copying(text, what, title) {
  const button = el("button", { type: "button", class: "small", title, "aria-label": title, onclick: async () => {
    try { await navigator.clipboard.writeText(what); button.textContent = "copied"; } catch { button.textContent = "not allowed"; }
    byId("spoken").textContent = button.textContent;
    setTimeout(() => { button.textContent = text; }, 1500);
  } }, text);
  return button;
}

// The text with what was searched for marked; pieces are text nodes, never markup.
function marked(text, query) {
  if (!query) return [text];
  const low = text.toLowerCase(), wanted = query.toLowerCase(), parts = [];
  if (low.length !== text.length) return [text];  // some letters change length in lower case: the places would be off
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), el("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

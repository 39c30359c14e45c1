// What the policies answered to the same prompts; everything a policy wrote is put in as text.
const AT_ONCE = 20;

// Of outcomes that are right or wrong one can ask who got it right; other scores are shown as numbers.
const OUTCOMES = DATA.score === "pass@1";

// Short answers stand two beside each other on a phone.
const BRIEF = DATA.prompts.every((row) => row.by.every((one) => (one.sampled ?? "").length < 120));

function startSamples() {
  const state = { shown: AT_ONCE, who: DATA.policies.map(() => "any") };
  const selects = (OUTCOMES ? DATA.policies : []).map((one) => el("select", { "data-policy": one.label },
    ["any", "right", "wrong"].map((value) => el("option", { value }, value))));
  byId("who").append(...selects.map((select, nth) => el("label", {}, swatch(nth), DATA.policies[nth].label, select)));
  byId("completions-note").textContent = `${figure(DATA.prompts.length)} held-out prompts. ${OUTCOMES ? "Choose who got it right, search, or both." : "Numbers are scores."}`;
  const texts = DATA.prompts.map((row) => ({
    sampled: haystack(row, "sampled"), greedy: haystack(row, "greedy"),
  }));

  const matches = () => {
    const which = byId("which").value, query = byId("search").value.trim().toLowerCase();
    return DATA.prompts.filter((row, index) => {
      const asked = selects.every((select, nth) => select.value === "any" || (select.value === "right") === (row.by[nth][`${which}_score`] > 0.5));
      return asked && (!query || texts[index][which].includes(query));
    });
  };
  const show = () => {
    const which = byId("which").value, query = byId("search").value.trim(), found = matches();
    byId("found").textContent = `${figure(found.length)} of ${figure(DATA.prompts.length)} prompts`;
    byId("prompts").replaceChildren(...found.slice(0, state.shown).map((row) => card(row, which, query)));
    byId("more").hidden = found.length <= state.shown;
    byId("more").textContent = `Show ${Math.min(AT_ONCE, found.length - state.shown)} more`;
  };
  const afresh = () => { state.shown = AT_ONCE; show(); };
  for (const input of [byId("search"), byId("which"), ...selects]) input.addEventListener("input", afresh);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(afresh));
  byId("more").addEventListener("click", () => {
    const next = state.shown;
    state.shown += AT_ONCE;
    show();
    const first = byId("prompts").children[next];
    if (first) first.focus({ preventScroll: true });
  });
  show();
}

// evaluate.settings.completions: none
function hideSamples() {
  byId("completions-note").textContent = "Prompts and completions were not kept (evaluate.settings.completions).";
  for (const id of ["filters", "found", "more"]) byId(id).hidden = true;
}

function haystack(row, which) {
  return [row.id, row.problem, row.prompt, row.answer, ...row.by.map((one) => one[which] ?? "")].join("\n").toLowerCase();
}

function card(row, which, query) {
  const expected = row.answer ? el("small", {}, "  answer ", el("b", {}, marked(row.answer, query))) : null;
  return el("li", { tabindex: "-1", "data-prompt": row.id }, el("p", { class: "asked" }, marked(row.prompt, query), expected),
    el("div", { class: BRIEF ? "answers narrow" : "answers" }, DATA.policies.map((one, nth) => answer(one.label, nth, row.by[nth], which, query))));
}

function answer(label, nth, found, which, query) {
  const { samples } = DATA.policies[nth], text = found[which], score = found[`${which}_score`], right = score > 0.5;
  const verdict = OUTCOMES ? (right ? "right" : "wrong") : `score ${fixed(score, 3)}`;
  const badge = !isNumber(score) ? null : OUTCOMES ? el("span", { class: `badge ${verdict}` }, right ? "✓ right" : "✗ wrong") : el("span", {}, verdict);
  const all = OUTCOMES ? `${Math.round(found.mean_score * samples)} of ${samples} samples` : `mean of ${samples} samples ${fixed(found.mean_score, 3)}`;
  const mean = isNumber(found.mean_score) ? el("small", { title: "of all samples of this prompt" }, all) : null;
  return el("article", { "data-policy": label, "aria-label": `${label}: ${verdict}` },
    el("h3", {}, el("span", {}, swatch(nth), label), badge, mean),
    el("pre", { class: text ? null : "empty" }, text === null ? (isNumber(score) ? "not kept" : "not measured") : text === "" ? "(nothing)" : marked(text, query)));
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

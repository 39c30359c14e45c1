// What the policies answered to the same prompts; everything a policy wrote is put in as text.
const AT_ONCE = 20;

// Short answers stand two beside each other on a phone.
const BRIEF = DATA.prompts.every((row) => row.by.every((one) => (one.sampled ?? "").length < 120));

function startSamples() {
  const state = { shown: AT_ONCE, who: DATA.policies.map(() => "any") };
  const selects = DATA.policies.map((one, nth) => el("select", { "data-policy": one.label },
    ["any", "right", "wrong"].map((value) => el("option", { value }, value))));
  byId("who").append(...DATA.policies.map((one, nth) => el("label", {}, swatch(nth), one.label, selects[nth])));
  byId("completions-note").textContent = `The first ${figure(DATA.prompts.length)} held-out prompts. Choose who got it right, search, or both.`;
  const texts = DATA.prompts.map((row) => ({
    sampled: haystack(row, "sampled"), greedy: haystack(row, "greedy"),
  }));

  const matches = () => {
    const which = byId("which").value, query = byId("search").value.trim().toLowerCase();
    return DATA.prompts.filter((row, index) => {
      const asked = selects.every((select, nth) => select.value === "any" || (select.value === "right") === row.by[nth][`${which}_right`]);
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

function haystack(row, which) {
  return [row.id, row.problem, row.prompt, row.answer, ...row.by.map((one) => one[which] ?? "")].join("\n").toLowerCase();
}

function card(row, which, query) {
  const expected = row.answer ? el("small", {}, "  answer ", el("b", {}, marked(row.answer, query))) : null;
  return el("li", { tabindex: "-1", "data-prompt": row.id }, el("p", { class: "asked" }, marked(row.prompt, query), expected),
    el("div", { class: BRIEF ? "answers narrow" : "answers" }, DATA.policies.map((one, nth) => answer(one.label, nth, row.by[nth], which, query))));
}

function answer(label, nth, found, which, query) {
  const { samples } = DATA.policies[nth], text = found[which], right = found[`${which}_right`];
  const badge = right === null ? null : el("span", { class: `badge ${right ? "right" : "wrong"}` }, right ? "✓ right" : "✗ wrong");
  const share = isNumber(found.share) ? el("small", { title: "right ones among all samples of this prompt" }, `${Math.round(found.share * samples)} of ${samples} samples`) : null;
  return el("article", { "data-policy": label, "aria-label": `${label}: ${right ? "right" : "wrong"}` },
    el("h3", {}, el("span", {}, swatch(nth), label), badge, share),
    el("pre", { class: text ? null : "empty" }, text === null ? "not measured" : text === "" ? "(nothing)" : marked(text, query)));
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

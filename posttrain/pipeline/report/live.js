// The page of `posttrain watch`: says what runs, and loads itself again when a figure is new, with what was chosen on it.
const ASK_MS = 3000, QUIET_MS = 4000, KEPT = "posttrain-live";

function controls() {
  return [...document.querySelectorAll("main select, main input, main details")].map((one) => [one.id || `${one.closest("[id]").id} ${one.value}`, one]);
}

function keep() {
  const state = (one) => (one.type === "checkbox" ? one.checked : one.value ?? one.open);
  sessionStorage.setItem(KEPT, JSON.stringify({ at: scrollY, values: controls().map(([name, one]) => [name, state(one)]) }));
}

function restore() {
  const { at, values } = JSON.parse(sessionStorage.getItem(KEPT) || '{"at":0,"values":[]}'), kept = new Map(values);
  sessionStorage.removeItem(KEPT);
  for (const [name, one] of controls()) {
    if (!kept.has(name)) continue;
    if (one.matches("details")) { one.open = kept.get(name); continue; }
    const key = one.type === "checkbox" ? "checked" : "value", changed = one[key] !== kept.get(name);
    if (!changed || (one.options && ![...one.options].some((choice) => choice.value === kept.get(name)))) continue;
    one[key] = kept.get(name);
    for (const event of ["input", "change"]) one.dispatchEvent(new Event(event, { bubbles: true }));
  }
  scrollTo(0, at);
}

function startLive() {
  let moved = 0;
  for (const event of ["pointermove", "pointerdown", "keydown", "wheel", "touchmove"]) addEventListener(event, () => { moved = Date.now(); }, { passive: true });
  const say = (lines) => byId("live").replaceChildren(...lines.map((line) => el("div", {}, line)));
  const ask = async () => {
    try {
      const state = document.hidden ? null : await (await fetch("/state")).json();
      if (state) say(state.lines);
      if (state && state.version !== byId("live").dataset.version && Date.now() - moved > QUIET_MS) { keep(); location.reload(); return; }
    } catch { say(["The server of this page has ended. Start it again: posttrain watch"]); }
    setTimeout(ask, ASK_MS);
  };
  restore();
  ask();
}
startLive();

// Settings side by side, and what every stage started from and made.
function settingsTable(runs, rows) {
  const head = el("tr", {}, el("th", { scope: "col" }, "setting"), runs.map((run) => el("th", { scope: "col", class: "left" }, swatch(lookOf(run)), run)));
  const body = rows.map((row) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, row.key)),
    row.values.map((value) => (value === null ? el("td", { class: "left faint" }, "default") : el("td", { class: "left" }, el("code", {}, value))))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of settings, scrolls sideways" },
    el("table", {}, el("caption", { class: "hidden" }, "Settings of the runs"), el("thead", {}, head), el("tbody", {}, body)));
}

function startSettings() {
  const { runs, differ, alike } = DATA.settings, body = byId("settings-body");
  if (!runs.length) { body.append(el("p", { class: "note" }, "params.yaml names no runs.")); return; }
  body.append(el("p", { class: "note" }, "As written in params.yaml; 'default' is what the run's algorithm brings with it."));
  body.append(settingsTable(runs, differ));
  if (alike.length) body.append(el("details", {}, el("summary", {}, `${alike.length} settings that are alike`), settingsTable(runs, alike)));
}

const figures = (pairs) => el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, words(name)), el("dd", {}, value))));

function startLineage() {
  const head = el("tr", {}, ["stage", "starts from", "counted", "settings"].map((text) => el("th", { scope: "col", class: "left" }, text)));
  const rows = DATA.stages.map((stage) => {
    const settings = Object.entries(stage.settings);
    return el("tr", {}, el("th", { scope: "row" }, stage.path), el("td", { class: "left" }, stage.start || "–"),
      el("td", { class: "left wrap" }, figures(Object.entries(stage.numbers).map(([name, value]) => [name, figure(value)]))),
      el("td", { class: "left wrap" }, settings.length ? el("details", {}, el("summary", {}, `${settings.length} set`), figures(settings)) : "defaults"));
  });
  byId("lineage-body").append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of stages, scrolls sideways" },
    el("table", {}, el("caption", { class: "hidden" }, "Stages"), el("thead", {}, head), el("tbody", {}, rows))));
}

// Settings side by side, and what every stage started from and made.
function settingsTable(caption, runs, rows) {
  const titles = ["setting", ...runs.map((run) => ({ text: [swatch(lookOf(run)), run], left: true }))];
  return table(caption, titles, rows.map((row) => ({
    name: el("code", {}, row.key),
    cells: row.values.map((value) => (value === null ? { of: "not set", kind: "faint" } : el("code", {}, value))),
  })));
}

function startSettings() {
  const { runs, differ, alike } = DATA.settings, body = byId("settings-body");
  if (!runs.length) { body.append(el("p", { class: "note" }, "params.yaml names no runs.")); return; }
  body.append(el("p", { class: "note" }, "As written in params.yaml. What a run does not set is its algorithm's default, or is nothing to that algorithm."));
  body.append(settingsTable("Settings that differ", runs, differ));
  if (alike.length) body.append(el("details", {}, el("summary", {}, `${alike.length} settings that are alike`), settingsTable("Settings that are alike", runs, alike)));
}

const figures = (pairs) => el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, words(name)), el("dd", {}, value))));

function startLineage() {
  const rows = DATA.stages.map((stage) => {
    const settings = Object.entries(stage.settings), numbers = Object.entries(stage.numbers).map(([name, value]) => [name, figure(value)]);
    const folded = () => el("details", {}, el("summary", {}, `${settings.length} set`), figures(settings));
    return { name: stage.path, cells: [stage.start || "–", { of: figures(numbers), kind: "wrap" }, { of: settings.length ? folded() : "defaults", kind: "wrap" }] };
  });
  const titles = ["stage", ...["starts from", "counted", "settings"].map((text) => ({ text, left: true }))];
  byId("lineage-body").append(table("Stages", titles, rows, true));
}

// Evaluations during training: the reward that a run learns from against the true one, on held-out prompts.
function startWatched() {
  for (const [nth, one] of DATA.evaluations.entries()) {
    const series = [["true", "heldout_true"], ["proxy", "heldout_proxy"]].map(([name, key], at) => ({ name, look: at + 1, points: one[key] }));
    const alarm = isNumber(one.over_optimised_step) ? ` Over-optimised at step ${figure(one.over_optimised_step)}.` : "";
    const host = el("div");
    byId("watched-charts").append(host, el("p", { class: "note" },
      `${one.label}: the true reward was best at step ${figure(one.best_step)}; the model is that of step ${figure(one.kept_step)}.${alarm}`));
    new Chart(host, { id: `watched-${nth}` }).show({ title: one.label, xLabel: "step", yLabel: "held-out reward", series });
  }
}

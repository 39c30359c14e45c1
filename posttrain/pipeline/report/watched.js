// Evaluations during training, on held-out rows: what decides (a reward, a score, a loss), and what is learned from.
const WATCHED = { true: "true reward", score: "score", loss: "loss" };

function startWatched() {
  for (const [nth, one] of DATA.evaluations.entries()) {
    const series = one.measured.map(({ name, points }, at) => ({ name, look: at + 1, points }));
    const alarm = isNumber(one.over_optimised_step) ? ` Over-optimised at step ${figure(one.over_optimised_step)}.` : "";
    const host = el("div");
    byId("watched-charts").append(host, el("p", { class: "note" },
      `${one.label}: the held-out ${WATCHED[series[0].name]} was best at step ${figure(one.best_step)}; the model is that of step ${figure(one.kept_step)}.${alarm}`));
    new Chart(host, { id: `watched-${nth}` }).show({ title: one.label, xLabel: "step", yLabel: `held-out ${series.map(({ name }) => name).join(", ")}`, series });
  }
}

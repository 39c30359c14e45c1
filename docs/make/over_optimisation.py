"""docs/reports/over-optimisation.md and its plot, from the results of benchmarks.over_optimisation."""

from __future__ import annotations

import statistics
from typing import Any

Results = dict[str, Any]
COLOURS = {"true": "#0b6bb5", "proxy": "#c2570c"}
LABELS = {"true": "true reward (correct)", "proxy": "proxy (reward model)"}
PAGE = """# Over-optimisation

A reward model is a proxy: a policy that learns from it alone finds answers that the model likes and that are wrong.
Here GRPO learns from the miniature's reward model, without a KL penalty. `watch` measures the true reward, correct
answers, on held-out prompts meanwhile ([watching.md](../watching.md)).

![Proxy and true reward over the steps](over-optimisation.svg)

Lines are the mean of {seeds} seeds, areas each seed's 95 % interval over {prompts} held-out prompts. Dots are the
weights that become the model.

| run | alarm at step | model of | true, held out | proxy, held out | pass@1 on test | change from the start [95 %] |
|---|---:|---:|---:|---:|---:|---:|
{rows}

Before the first step: true reward {start_true:.2f}, proxy {start_proxy:.2f}, pass@1 on test {start:.3f}. Cells are the
mean and the seeds. The interval in the last column covers the {seeds} seeds (Student's t) and the test
prompts. It holds for this one start model.

- **What goes wrong.** Without KL the proxy rises to the end, from {start_proxy:.2f} to {end_proxy:.2f}, and so does
  `reward` in training. Correct answers rise to {best_true:.2f} and fall to {end_true:.2f}, which no metric of the
  learned reward shows.
- **The alarm.** In two evaluations in a row the proxy is clearly higher and the true reward clearly lower than at the
  best one: {alarms}.
- **Cure 1: a KL penalty.** `kl: {{type: loss, beta: 0.4}}` keeps the policy near its start, where the reward model has
  learned to judge. Nothing collapses, but there is no clear gain at the end either. At 0.05 and 0.1 the alarm was
  printed as without KL (one seed, not shown).
- **Cure 2: the best weights.** `watch: {{keep: best, patience: 2}}` ends the run and saves the weights of the best
  evaluation. It needs no coefficient, but a true reward for some held-out prompts. The held-out score of weights that
  were chosen by it is too high by chance; the score on the test prompts is not.
- **What {seeds} seeds show.** {verdicts}
- A run that ends by `patience` may end before the alarm, which needs the proxy to rise clearly as well.

## What watching costs

CPU seconds of a run of 60 steps with the miniature's model; the least of {repeats} repeats, taken in turn:

| watching | seconds | more |
|---|---:|---:|
{overhead}

The model is tiny, so fixed costs show: an evaluation takes {each:.0f} ms, of which the intervals take 18, and the run
samples {sampled} completions of its own between two evaluations of 64. The other metrics of a step cost less than the
noise: 3.0 seconds with and without them.

`python -m benchmarks.over_optimisation` writes this page and `benchmarks/results/over-optimisation.json`; {machine}.
"""


def page(results: Results) -> str:
    """Return the page."""
    first = results["cases"]["no KL"]
    curves = [one["curve"] for one in first]
    overhead = results["overhead"]
    base = min(next(iter(overhead.values())))
    gap, watched = list(overhead)[1:]
    return PAGE.format(
        seeds=len(first),
        prompts=100,
        rows="\n".join(_row(case, runs, results["differences"][case]) for case, runs in results["cases"].items()),
        start=statistics.fmean(results["start"]),
        start_true=_mean(curve["heldout_true"][0] for curve in curves),
        start_proxy=_mean(curve["heldout_proxy"][0] for curve in curves),
        end_proxy=_mean(curve["heldout_proxy"][-1] for curve in curves),
        best_true=_mean(max(curve["heldout_true"]) for curve in curves),
        end_true=_mean(curve["heldout_true"][-1] for curve in curves),
        alarms=_alarms(first),
        verdicts=" ".join(_verdict(case, change) for case, change in results["differences"].items()),
        repeats=len(next(iter(overhead.values()))),
        overhead="\n".join(
            f"| {name} | {min(spent):.2f} | {min(spent) / base - 1:+.1%} |" for name, spent in overhead.items()
        ),
        sampled=5 * 64,
        each=1000 * (min(overhead[watched]) - min(overhead[gap])) / 7,
        machine=results["machine"],
    )


def draw(results: Results) -> str:
    """Proxy and true reward of each case over the steps, as SVG."""
    import vl_convert

    spec = figure(results)
    return str(vl_convert.vegalite_to_svg(spec, vl_version="5.20"))


def figure(results: Results) -> dict[str, Any]:
    """Return the plot for vega-lite."""
    return {
        "concat": [_panel(case, runs) for case, runs in results["cases"].items()],
        "columns": 2,
        "background": "white",
        "padding": 14,
        "config": {"view": {"stroke": None}, "axis": {"labelFontSize": 11, "titleFontWeight": "normal"}},
    }


def _panel(case: str, runs: list[Results]) -> dict[str, Any]:
    rows = [
        {"kind": LABELS[kind], "seed": run["seed"], "saved": run["kept_step"]}
        | {"step": step, "value": value, "low": low, "high": high}
        for run in runs
        for kind in LABELS
        for step, value, low, high in zip(
            *(run["curve"][key] for key in ("step", *(f"heldout_{kind}{end}" for end in ("", "_low", "_high")))),
            strict=True,
        )
    ]
    colour = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(LABELS.values()), "range": list(COLOURS.values())},
        "legend": {"orient": "bottom", "symbolOpacity": 1, "symbolType": "stroke"},
    }
    x = {"field": "step", "type": "quantitative", "title": "optimizer step", "scale": {"domain": [0, 60]}}
    y = {"field": "value", "type": "quantitative", "title": "held-out reward", "scale": {"domain": [-0.3, 0.8]}}
    alarms = [{"step": run["over_optimised_step"]} for run in runs if "over_optimised_step" in run]
    first = min((alarm["step"] for alarm in alarms), default=None)
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "area", "opacity": 0.1},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "color": colour,
                "detail": {"field": "seed"},
            },
        },
        {
            "mark": {"type": "line", "strokeWidth": 2.5},
            "encoding": {"x": x, "y": {**y, "aggregate": "mean"}, "color": colour},
        },
    ]
    saved = [row for row in rows if row["kind"] == LABELS["true"] and row["step"] == row["saved"]]
    circle = {"type": "point", "filled": True, "size": 70, "opacity": 0.8}
    layers.append({"data": {"values": saved}, "mark": circle, "encoding": {"x": x, "y": y, "color": colour}})
    if first is not None:
        values = {"values": [{"step": first, "text": "alarm"}]}
        at = {"field": "step", "type": "quantitative"}
        layers.append({"data": values, "mark": {"type": "rule", "strokeDash": [5, 4]}, "encoding": {"x": at}})
        label = {"x": at, "y": {"value": 8}, "text": {"field": "text"}}
        layers.append({"data": values, "mark": {"type": "text", "align": "left", "dx": 4}, "encoding": label})
    return {"title": case, "width": 250, "height": 220, "data": {"values": rows}, "layer": layers}


def _row(case: str, runs: list[Results], change: list[float]) -> str:
    alarms = [str(run.get("over_optimised_step", "none")) for run in runs]
    cells = [
        case,
        ", ".join(alarms),
        ", ".join(str(run["kept_step"]) for run in runs),
        _cell([run["heldout_true"] for run in runs]),
        _cell([run["heldout_proxy"] for run in runs]),
        _cell([statistics.fmean(run["test"]) for run in runs]),
        f"{change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}]",
    ]
    return f"| {' | '.join(cells)} |"


def _verdict(case: str, change: list[float]) -> str:
    """Say what the change of a case shows."""
    shown = f"{change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}]"
    if change[1] <= 0 <= change[2]:
        return f"{case}: cannot tell ({shown})."
    return f"{case}: {'better' if change[0] > 0 else 'worse'} than the start ({shown})."


def _cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})"


def _alarms(runs: list[Results]) -> str:
    at = [run["over_optimised_step"] for run in runs if "over_optimised_step" in run]
    return f"in {len(at)} of {len(runs)} runs, at steps {', '.join(map(str, at))} of 60"


def _mean(values: Any) -> float:
    return statistics.fmean(values)

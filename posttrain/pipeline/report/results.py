"""The results of the last run as a table for the terminal, as data, or as the report's page."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from posttrain.measure.text_table import text_table
from posttrain.pipeline.compare.words import ABOUT_ONE_SEED, ONE_SEED
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Settings, group_of, model_runs, section_of
from posttrain.pipeline.report.curves import evaluations
from posttrain.pipeline.report.decision import decide
from posttrain.pipeline.report.lineage import labels
from posttrain.pipeline.report.lm_eval import lm_eval_lines, lm_eval_rows
from posttrain.pipeline.report.other_tables import as_cells, as_lines, other_tables
from posttrain.pipeline.report.policies import read_policies
from posttrain.pipeline.report.ratings import rating_lines, read_ratings
from posttrain.pipeline.report.regraded import read_regraded, regraded_lines
from posttrain.pipeline.report.stale_results import NOT_HERE
from posttrain.pipeline.report.summary import (
    SCORES,
    Figures,
    gains,
    is_measured,
    policy_figures,
    result_rows,
    result_titles,
    reward_figures,
    summarize,
    tasks_of,
    trainings,
    verdict,
)
from posttrain.settings.plain import flattened

WIDTH = 100
_INTERVALS = (
    "Intervals are at 95 %, over the prompts of one test set, and over seeds where a setting has several. They hold "
    "for these start models. `posttrain compare` tests more differences."
)


def results_table(not_current: Mapping[str, str], against: str | None = None) -> str:
    """Return every setting with its metrics or the reason why it has none, then the gains and next steps."""
    summary, tasks, trained, errors = current_summary(not_current, against)
    others, missing = other_tables(read(), not_current)
    errors |= missing
    theirs = lm_eval_lines(read(), not_current)
    if not (summary or others or errors):
        return theirs or "params.yaml evaluates no policy. Add one: evaluate.policies (`posttrain params evaluate`)"
    rows = [result_titles(summary, against), *result_rows(summary)] if policy_figures(summary) else []
    first = max(map(len, [*(row[0] for row in rows), *errors]), default=0)
    left = (0, rows[0].index("verdict")) if rows else ()
    lines = text_table([[row[0].ljust(first), *row[1:]] for row in rows], left=left, ruled=True)
    lines += [f"{label.ljust(first)}  {' '.join(error.split())}" for label, error in errors.items()]
    judged, explained = map(_judge_note, summary.items()), gains(summary, tasks, trained)
    one_seed = ABOUT_ONE_SEED if any(ONE_SEED in cell for row in rows for cell in row) else ""
    about = (_INTERVALS, one_seed, reward_note(summary), *judged, explained) if policy_figures(summary) else ()
    notes = [textwrap.fill(note, WIDTH) for note in (*about, *_fallen(read())) if note]
    follow = _next() if policy_figures(summary) or others else _first(errors)
    regraded = regraded_lines(read_regraded(read(), not_current))
    blocks = ["\n".join(lines), *_rated(read(), not_current), *notes, *as_lines(others), regraded, theirs, follow]
    return "\n\n".join(block for block in blocks if block)


def results_markdown(not_current: Mapping[str, str], against: str | None = None) -> str:
    """Return the page's tables in Markdown: every setting, and the evaluations of `evaluate.runs`."""
    summary, tasks, trained, errors = current_summary(not_current, against)
    others, missing = other_tables(read(), not_current)
    parts = []
    if policy_figures(summary):
        parts.append(markdown_table([result_titles(summary, against), *result_rows(summary)]))
    parts += [
        f"**{name}**\n\n{markdown_table(cells)}" for name, cells in ((other.name, as_cells(other)) for other in others)
    ]
    parts += [f"- {label}: {' '.join(error.split())}" for label, error in (errors | missing).items()]
    notes = (reward_note(summary), gains(summary, tasks, trained)) if policy_figures(summary) else ()
    return "\n\n".join(part for part in (*parts, *notes) if part)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table in Markdown; the first row has the titles."""
    lines = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _rated(settings: Settings, not_current: Mapping[str, str]) -> Iterator[str]:
    """Yield the ratings of policies, each as lines."""
    for name, rating in read_ratings(settings, not_current).items():
        yield "\n".join(rating_lines(name, rating))


def results_json(not_current: Mapping[str, str], against: str | None = None) -> str:
    """Return the results as plain data: one row per setting, best first."""
    summary, _, _, errors = current_summary(not_current, against)
    rows = [
        {
            "policy": name,
            **figures,
            "verdict": verdict(figures),
            **({} if is_measured(figures) else dict.fromkeys(SCORES)),
        }
        for name, figures in policy_figures(summary).items()
    ]
    others, missing = other_tables(read(), not_current)
    rows += [{"table": table.name, **row} for table in others for row in table.rows]
    errors |= missing
    rows += lm_eval_rows(read(), not_current)
    rows += [{"ratings": name, **content} for name, content in read_ratings(read(), not_current).items()]
    rows += [{"regraded": name, **content} for name, content in read_regraded(read(), not_current).items()]
    return json.dumps([*rows, *({"policy": name, "error": error} for name, error in errors.items())], indent=2)


def write_report(not_current: Mapping[str, str], to: str | None = None) -> str:
    """Write the page from current results, with date and origin. Return a text about omitted parts.

    It is not the page under report/. That one is an output of DVC, and only the stage writes it.
    """
    from posttrain.pipeline.report.build import build_page
    from posttrain.pipeline.report.heading import PAGE_SO_FAR, heading

    file = Path(to or PAGE_SO_FAR)
    errors = build_page(not_current, heading(), file)
    return "\n".join([f"wrote {file}", *(f"{label} is left out: {error}" for label, error in errors.items())])


def current_summary(
    not_current: Mapping[str, str], against: str | None = None
) -> tuple[dict[str, Figures], dict[str, str], dict[str, list[Figures]], dict[str, str]]:
    """Return rows of settings with current results, their tasks and trainings, and label -> reason for the others."""
    from posttrain.pipeline.report.build import reward_metrics

    settings = read()
    policies, errors = read_policies(settings, not_current)
    table = decide(policies, settings)
    each = summarize(policies, reward_metrics(settings, not_current) if policies else {})
    summary = {**table.figures(against), **reward_figures(each)}
    return summary, table.tasks(tasks_of(policies)), trainings(each, table.members), errors


def reward_note(summary: Mapping[str, Figures]) -> str:
    """Return a sentence with the accuracies of the reward models."""
    accuracies = [f"{name} {figures['accuracy']:.3f}" for name, figures in reward_figures(summary).items()]
    return f"Accuracy of the reward model on held-out pairs: {', '.join(accuracies)}." if accuracies else ""


def _judge_note(policy: tuple[str, Figures]) -> str:
    """Return the usage of a judge's verdicts on a policy."""
    label, figures = policy
    if "judge_requests" not in figures:
        return ""
    cost = f", cost {figures['judge_cost']:.4g}" if "judge_cost" in figures else ""
    tokens = f"{figures['judge_tokens_in']:,.0f} tokens in, {figures['judge_tokens_out']:,.0f} out"
    return f"The judge of {label}: {figures['judge_requests']:,.0f} requests, {tokens}{cost}."


def _fallen(settings: Settings) -> Iterator[str]:
    """Yield the report's warning for each run whose true held-out reward fell during training."""
    for run in evaluations(labels(settings).items()):
        first = run["measured"][0]
        points = {point["x"]: point for point in first["points"]}
        best, stored = (points.get(run.get(name)) for name in ("best_step", "kept_step"))
        alarm = f" Over-optimised at step {run['over_optimised_step']}." if "over_optimised_step" in run else ""
        worse = (
            best and stored and (stored["high"] < best["low"] if first["sign"] > 0 else stored["low"] > best["high"])
        )
        if alarm or worse:
            what = {"true": "true reward"}.get(first["name"], first["name"])
            steps = f"was best at step {run['best_step']}; the model is that of step {run['kept_step']}"
            yield f"{run['label']}: the {what} {steps}.{alarm}"


def _first(errors: Mapping[str, str]) -> str:
    """Return what to run if there is no result yet."""
    away = bool(errors) and all(why == NOT_HERE for why in errors.values())
    return "Get the results: dvc pull" if away else "Run the pipeline: dvc repro"


def _next() -> str:
    tool = _next_to_python("dvc")
    page = ("report/report.html", "everything on one page: curves, frontier, completions side by side")
    rows = [
        *([page] if Path(page[0]).is_file() else []),
        (f"{tool} plots show", "the metrics of every step"),
        (f"{tool} exp run -S '{_example_setting(read())}'", "change a setting; only what depends on it runs again"),
        (f"{tool} exp show --only-changed", "the experiments side by side: what differs"),
        ("posttrain show results --help", "what the numbers mean"),
    ]
    width = max(len(command) for command, _ in rows)
    return "\n".join(["Next", *(f"  {command.ljust(width)}  {about}" for command, about in rows)])


def _example_setting(settings: Settings) -> str:
    """Return an argument for `-S` that doubles a nonzero number in the last run's settings."""
    candidates = [
        (f"{section_of(settings, path)}.{key}", float(text))
        for path, run in model_runs(settings).items()
        for key, text in (flattened(run) if run else {}).items()
        if key in ("kl.beta", "loss.beta", "optimizer.lr")
        and text.replace(".", "", 1).replace("e-", "", 1).isdigit()
        and float(text)
    ]
    preferred = [candidate for candidate in candidates if candidate[0].endswith("beta")] or candidates
    if not preferred:
        samples = group_of(settings, "evaluate.settings").get("samples")
        return f"evaluate.settings.samples={2 * samples}" if samples else "+evaluate.settings.samples=16"
    name, value = preferred[-1]
    return f"{name}={2 * value:g}"


def _next_to_python(tool: str) -> str:
    """Return the command to type, with the environment's folder if that is in the workspace."""
    folder = Path(sys.executable).parent
    return str((folder / tool).relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else tool

"""The inputs of a preview: a table, the tokenizer of a model or of a run's start, and the row limits."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.data.columns import KINDS, Kind
from posttrain.errors import DataError, ModelError, ParamsError
from posttrain.models.files.adapter_files import config_file
from posttrain.models.files.store import MANIFEST, load_config, load_stop_tokens, load_tokenizer
from posttrain.models.files.tokenizer import check_template, complete_tokenizer
from posttrain.pipeline.checks.named_table import table_file
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.stage_table import model_runs, section_of, stage_of
from posttrain.pipeline.runs.typed import load_settings
from posttrain.pipeline.workspace import PARAMS_FILE, model_path
from posttrain.settings.params import nearest
from posttrain.text.chat import DATE, ChatText, Trained


@dataclass(frozen=True)
class Limits:
    """The limits on rows, from a run's settings, the model or an option."""

    longest: int | None
    """Longer rows are left out of training or cut (`max_tokens`)."""
    long_rows: Literal["drop", "cut"]
    context: int | None
    """The longest row that the model can read."""
    turns: Trained


@dataclass(frozen=True)
class Subject:
    """A table and how it is tokenised."""

    table: Path
    kind: Kind
    model: str
    text: ChatText
    limits: Limits


@contextlib.contextmanager
def opened(table: str, model: str, turns: Trained | None, longest: int | None) -> Iterator[Subject]:
    """Yield a table (`NAME/KIND` or a file) with a model: a folder, one under models/, or an untrained run's start."""
    path, kind = _table(table)
    settings = _settings(model)
    folder, template, variables = _folder(model)
    limits = Limits(
        longest=longest if longest is not None else settings.get("max_tokens"),
        long_rows=settings.get("long_rows", "drop"),
        context=getattr(load_config(folder).get_text_config(), "max_position_embeddings", None),
        turns=turns or settings.get("turns", "all" if kind == "chat" else "last"),
    )
    with tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
        tokens, ends = folder, load_stop_tokens(folder)
        if (
            template or variables or not (folder / MANIFEST).is_file()
        ):  # as the stage that takes the model in would complete it
            tokens = Path(scratch) / "tokenizer"
            complete_tokenizer(folder, tokens, template, variables)
            if template:
                ends = check_template(folder, tokens, template, scores=False)
        given_template = settings.get("template") if "date" in settings else None
        text = ChatText(load_tokenizer(tokens), str(folder), ends, settings.get("date", DATE), variables=given_template)
        yield Subject(path, kind, str(folder), text, limits)


def _table(name: str) -> tuple[Path, Kind]:
    path = table_file(name)
    if path.suffix != ".parquet":
        what = "this is a source file of a table, not a table"
        raise DataError(
            what=what, where=name, fix="List it in params.yaml, run `dvc repro data_files@RUN`, and give RUN/KIND"
        )
    kind = next((kind for kind in KINDS if kind == path.stem), None)
    if kind is None:
        what, fix = (
            "this is not the name of a table",
            f"Give NAME/KIND with KIND one of {', '.join(KINDS)}, or its file",
        )
        raise DataError(what=what, where=name, fix=fix)
    return path, kind


def _settings(model: str) -> Mapping[str, Any]:
    """Return the settings of the run that makes a model as plain data; empty for a folder."""
    runs = model_runs(read()) if Path(PARAMS_FILE).is_file() else {}
    if model not in runs:
        return {}
    group, _, name = section_of(read(), model).rpartition(".")
    settings_of_run: dict[str, Any] = load_settings(group, name).model_dump()
    return settings_of_run


def _folder(asked: str) -> tuple[Path, str | None, Mapping[str, Any]]:
    """Return the folder of a model or of its run's start, with the template and variables from the run."""
    name, seen, template = asked, {asked}, None
    variables: Mapping[str, Any] = {}
    while True:
        for folder in (Path(name), model_path(name)):
            if config_file(folder).is_file():
                return folder, template, variables
        settings = read()
        known = model_runs(settings)
        if name not in known:
            near = nearest(name, list(known))
            fix = (
                f"Did you mean '{near}'?" if near else "Give a folder with config.json, a model under models/, or one "
            )
            fix += "" if near else f"of the runs: {', '.join(known) or 'none'}"
            raise ParamsError(what="this is neither a model folder nor a run of params.yaml", where=name, fix=fix)
        run = at(settings, section_of(settings, name)) or {}
        before, template = run.get("start", run.get("path")), run.get("chat_template")
        variables = run.get("template") or {} if "path" in run else {}
        if not isinstance(before, str) or before in seen:
            fix = f"Make it first: dvc repro {stage_of(settings, name)}"
            raise ModelError(
                what=f"the model {name} does not exist yet, so there is no tokenizer", where=asked, fix=fix
            )
        name = before
        seen.add(name)

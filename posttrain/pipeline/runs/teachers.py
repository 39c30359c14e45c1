"""The student and the teachers of a run of `distill.runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.api.models import models_from
from posttrain.data.splits import training_prompts
from posttrain.errors import ParamsError
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_config, load_policy, load_tokenizer
from posttrain.models.files.text import context_of, load_text
from posttrain.models.master_weights import frozen_on
from posttrain.online.run import OnlineRun
from posttrain.online.served_teacher import ServedTeacher
from posttrain.pipeline.params.slots import model_of, table_of
from posttrain.pipeline.runs.distill import TaughtRun
from posttrain.pipeline.runs.online import with_names
from posttrain.pipeline.runs.teacher_context import prompts_in_context
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.learned import models_of
from posttrain.rewards.scorable import scorable_prompts
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.text.chat import ChatText
from posttrain.train.model_set import Teacher


def distill_run(reads: RunInputs[Any]) -> OnlineRun:
    """Return a run of `distill.runs` with the values of its names: its prompts, the student and the teachers."""
    params, section = reads.params, reads.section
    start, table = reads.start(params.start), reads.table(params.data)
    named = model_of(params.teacher, f"{section}.teacher")
    teachers = {} if named is None else models_of(reads.reads(named))

    text = load_text(start, params.date, params.template)
    rows = training_prompts(read_table(table, "prompts"), table).iter_rows(named=True)
    prompts = encode_prompts(text, prompts_of(rows))
    if isinstance(params, TaughtRun):
        prompts = scorable_prompts(params.reward, prompts, str(table))
    seen = None
    if params.context is not None:
        where = f"{section}.context ({PARAMS_FILE})"
        seen = prompts_in_context(text, params.context, table, table_of(params.demonstrations), where)
    for member, teacher in teachers.items():
        own_name = f"{params.teacher}/{member}" if len(teachers) > 1 else params.teacher
        check_teacher(text, start, teacher, own_name, section)
        text.context = shared_context(text, teacher, seen or {}, section)

    runtime, formula = Runtime(params.device), params.formula()
    shares = iter(params.shares(teachers, section))
    asked = [
        Teacher(frozen_on(load_policy(teacher), runtime), formula, seen, share=next(shares))
        for teacher in teachers.values()
    ]
    for server in params.servers.values():
        served = ServedTeacher(server, section, text.tokenizer, params.start)
        asked.append(Teacher(None, formula, seen, served, share=next(shares)))
    return with_names(reads, text, prompts, models_from(start, params, teachers=asked))


def check_teacher(text: ChatText, start: Path, teacher: Path, name: str, section: str) -> None:
    """Refuse a teacher with another vocabulary."""
    rows = [load_config(folder).get_text_config().vocab_size for folder in (start, teacher)]
    if text.tokenizer.get_vocab() != load_tokenizer(teacher).get_vocab():
        what = f"has another tokenizer than {start}, so their tokens cannot be compared"
    elif rows[0] != rows[1]:
        what = f"has {rows[1]} embeddings and {start} has {rows[0]}, so their distributions cannot be compared"
    else:
        return
    fix = f"Sample it instead: data.samples.NAME.policy: {name} with tables: [chat], then sft on NAME/chat"
    raise ParamsError(what=f"{section}.teacher = '{name}' {what}", where=PARAMS_FILE, fix=fix)


def shared_context(
    text: ChatText, teacher: Path, seen: Mapping[tuple[int, ...], Sequence[int]], section: str
) -> int | None:
    """Return the longest row that the student can read, and the teacher with its additional context."""
    context, config = text.context, load_config(teacher)
    theirs = context_of(config)
    if theirs is None:
        return context
    left = theirs - max((len(framed) - len(plain) for plain, framed in seen.items()), default=0)
    if context is not None and context <= left:
        return context
    print(f"{section}: rows end at {left} tokens, since the teacher's context is {theirs}")
    return left

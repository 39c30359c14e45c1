"""The student and the teachers of a run of `distill.runs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from posttrain.api.models import models_from
from posttrain.data.splits import training_prompts
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_config
from posttrain.models.files.text import load_text
from posttrain.online.run import OnlineRun
from posttrain.online.teachers import Student, teachers_of
from posttrain.pipeline.params.slots import model_of, table_of
from posttrain.pipeline.runs.distill import TaughtRun
from posttrain.pipeline.runs.online import with_names
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.store import read_table
from posttrain.rewards.learned import models_of
from posttrain.rewards.scorable import scorable_prompts
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.text.chat_template import Conversation
from posttrain.train.tokenize_tables import conversation


def distill_run(reads: RunInputs[Any]) -> OnlineRun:
    """Read the inputs of a run of `distill.runs` (prompts, student, teachers) and return the run."""
    params, section = reads.params, reads.section
    start, table = reads.start(params.start), reads.table(params.data)
    named = model_of(params.teacher, f"{section}.teacher")
    teachers = {} if named is None else models_of(reads.reads(named))

    text = load_text(start, params.date, params.template)
    rows = training_prompts(read_table(table, "prompts"), table).iter_rows(named=True)
    prompts = encode_prompts(text, prompts_of(rows))
    student = Student(
        text, load_config(start).get_text_config().vocab_size, prompts,
        [] if params.context is None else _questions(params.demonstrations),
        params.start, section, str(table),
        {name: f"{params.teacher}/{name}" if len(teachers) > 1 else params.teacher for name in teachers},
    )  # fmt: skip
    asked = teachers_of(params, student, teachers, Runtime(params.device))
    if isinstance(params, TaughtRun):
        prompts = scorable_prompts(params.reward, prompts, str(table))
    return with_names(reads, text, prompts, models_from(start, params, teachers=asked))


def _questions(demonstrations: str) -> list[Conversation]:
    """Return the prompts of a run's demonstrations."""
    chat = table_of(demonstrations)
    if chat is None:
        return []
    talks = [
        conversation(row, str(chat)) for row in read_table(chat, "chat").filter(split="train").iter_rows(named=True)
    ]
    return [replace(talk, messages=talk.messages[:-1]) for talk in talks]

"""The teachers of a student: frozen models and endpoints, with their prompts and shares of the divergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_config, load_policy, load_tokenizer
from posttrain.models.files.text import context_of
from posttrain.models.master_weights import frozen_on
from posttrain.online.distill import StudentConfig
from posttrain.online.served_teacher import ServedTeacher
from posttrain.online.teacher_context import prompts_in_context
from posttrain.rollout import Prompt
from posttrain.settings.host import HOST
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation
from posttrain.train.model_set import Teacher

OTHER_TOKENS = "Sample it instead, and train on its answers with sft"


@dataclass(frozen=True)
class Student:
    """The student's properties that its teachers must match.

    `text.context` shrinks if a teacher's context is shorter.
    """

    text: ChatText
    vocabulary: int
    """The number of rows of its embeddings."""
    prompts: Sequence[Prompt]
    questions: Sequence[Conversation] = ()
    """The prompts of its demonstrations."""
    name: str = "the model"
    """Its name in messages."""
    section: str = "settings"
    """The place of its settings in messages."""
    source: str = "prompts"
    """The name of its prompts in messages."""
    called: Mapping[str, str] = field(default_factory=dict)
    """The name of a teacher in messages, if it is not the teacher's own name."""


def teachers_of(
    config: StudentConfig, student: Student, given: Mapping[str, Path | Any], runtime: Runtime
) -> list[Teacher]:
    """Return the teachers: first the given models or folders by name, then the endpoints in the settings."""
    seen = None
    if config.context is not None:
        where = f"{student.section}.context ({HOST.settings_file})"
        seen = prompts_in_context(
            student.text, config.context, student.prompts, student.questions, where, source=student.source
        )
    for name, teacher in given.items():
        check_teacher(student, teacher, student.called.get(name, name))
        student.text.context = shared_context(student.text, teacher, seen or {}, student.section)
    formula, shares = config.formula(), iter(config.shares(given, student.section))
    all_teachers = [
        Teacher(
            frozen_on(load_policy(teacher), runtime) if isinstance(teacher, Path) else teacher, formula, seen,
            share=next(shares),
        )
        for teacher in given.values()
    ]  # fmt: skip
    for server in config.servers.values():
        served = ServedTeacher(server, student.section, student.text.tokenizer, student.name)
        all_teachers.append(Teacher(None, formula, seen, served, share=next(shares)))
    return all_teachers


def _config(teacher: Path | Any) -> Any:
    return load_config(teacher) if isinstance(teacher, Path) else teacher.config


def check_teacher(student: Student, teacher: Path | Any, name: str) -> None:
    """Reject a teacher with a different vocabulary."""
    rows = _config(teacher).get_text_config().vocab_size
    if isinstance(teacher, Path) and student.text.tokenizer.get_vocab() != load_tokenizer(teacher).get_vocab():
        what = f"has a different tokenizer than {student.name}, so their tokens cannot be compared"
    elif rows != student.vocabulary:
        what = f"has {rows} embeddings and {student.name} has {student.vocabulary}, so their distributions cannot be "
        what += "compared"
    else:
        return
    fix = HOST.fix("teacher", OTHER_TOKENS).replace("TEACHER", name)
    raise ParamsError(what=f"{student.section}.teacher = '{name}' {what}", where=HOST.settings_file, fix=fix)


def shared_context(
    text: ChatText, teacher: Path | Any, seen: Mapping[tuple[int, ...], Sequence[int]], section: str
) -> int | None:
    """Return the maximum row length for the student and the teacher, which also reads its extra context."""
    context, theirs = text.context, context_of(_config(teacher))
    if theirs is None:
        return context
    left = theirs - max((len(framed) - len(plain) for plain, framed in seen.items()), default=0)
    if context is not None and context <= left:
        return context
    print(f"{section}: rows end at {left} tokens, because the teacher's context is {theirs}")
    return left

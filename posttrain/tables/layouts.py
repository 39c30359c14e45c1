"""Recognises the columns of TRL's data set layouts and turns them into the columns of our tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from posttrain.errors import DataError
from posttrain.tables.columns import COLUMNS, TURN, TURNS, Kind
from posttrain.tables.identity import content_ids

Layout = tuple[str, ...]
_LABELS: Final = {"true": True, "1": True, "false": False, "0": False}

Turner = Callable[[pl.DataFrame, str], pl.DataFrame]


def to_columns(frame: pl.DataFrame, kind: Kind, where: str) -> pl.DataFrame:
    """The table's own columns but `id` and `split`, from whichever layout the frame has; others are left out."""
    for layout, turn in LAYOUTS[kind].items():
        if set(layout) <= set(frame.columns):
            turned = turn(frame, where)
            named = _with_margin(_with_problem(turned, frame, kind, where), frame, kind, where)
            return named.select(name for name in COLUMNS[kind] if name not in ("id", "split"))
    understood = " | ".join(" + ".join(layout) for layout in LAYOUTS[kind])
    raise DataError(
        what=f"the columns {', '.join(frame.columns)[:300] or '(none)'} are no layout of a '{kind}' table",
        where=where,
        mend=f"Understood are: {understood}. Rename columns with 'rename', e.g. rename: {{question: prompt}}",
    )


def turns(frame: pl.DataFrame, name: str, role: str, where: str) -> pl.Series:
    """A column of plain texts, as one turn of `role` each, or of conversations, as they are."""
    dtype = frame.schema[name]
    if dtype == pl.String:
        turn = pl.struct(pl.lit(role).alias("role"), pl.col(name).alias("content"))
        whole = pl.when(pl.col(name).is_null()).then(None).otherwise(pl.concat_list(turn))
        return frame.select(whole.cast(TURNS).alias(name)).to_series()
    if isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.Struct):
        return _conversation(frame, name, dtype.inner, where)
    mend = "Give texts, or lists of turns with 'role' and 'content'"
    raise DataError(what=f"column '{name}' has the type {dtype}", where=where, mend=mend)


def _conversation(frame: pl.DataFrame, name: str, turn: pl.Struct, where: str) -> pl.Series:
    fields = {field.name: field.dtype for field in turn.fields}
    texts = [fields.get("role"), fields.get("content")]
    if texts != [pl.String, pl.String]:
        told = ", ".join(f"{key}: {dtype}" for key, dtype in fields.items())
        what = f"the turns of column '{name}' have the fields {told}"
        raise DataError(what=what, where=where, mend="Each turn needs the texts 'role' and 'content'")
    for extra in [key for key in fields if key not in ("role", "content")]:
        used = pl.col(name).list.eval(pl.element().struct.field(extra).is_not_null()).list.any()
        rows = frame.select(used.fill_null(value=False)).to_series().arg_true()
        if len(rows):
            what = f"row {rows[0]}: a turn of column '{name}' has '{extra}', which would be lost"
            raise DataError(what=what, where=where, mend=f"Put '{extra}' into the content, or remove it from the data")
    pair = pl.struct(pl.element().struct.field("role"), pl.element().struct.field("content"))
    # a null turn must stay null: a struct of two nulls would look like a turn
    kept = pl.when(pl.element().is_null()).then(pl.lit(None, dtype=TURN)).otherwise(pair)
    return frame.select(pl.col(name).list.eval(kept).cast(TURNS)).to_series()


def _text(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    return pl.DataFrame({"text": _string(frame, "text", where)})


def _messages(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    return pl.DataFrame({"messages": turns(frame, "messages", "user", where)})


def _demonstration(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    both = pl.DataFrame(
        {"prompt": turns(frame, "prompt", "user", where), "completion": turns(frame, "completion", "assistant", where)}
    )
    return both.select(messages=pl.concat_list("prompt", "completion"))


def _prompt(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    empty = pl.repeat("", frame.height, dtype=pl.String(), eager=True)
    answer = _string(frame, "answer", where) if "answer" in frame.columns else empty
    return pl.DataFrame({"prompt": turns(frame, "prompt", "user", where), "answer": answer})


def _preference(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    prompt = turns(frame, "prompt", "user", where)
    answers = {name: turns(frame, name, "assistant", where) for name in ("chosen", "rejected")}
    return pl.DataFrame({"prompt": prompt, **{name: _after(prompt, one, where) for name, one in answers.items()}})


def _implicit_preference(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    for name in ("chosen", "rejected"):
        if frame.schema[name] == pl.String:
            what = f"column '{name}' holds plain texts and there is no column 'prompt'"
            raise DataError(what=what, where=where, mend="Add the prompt, or give whole conversations with it in them")
    chosen, rejected = (turns(frame, name, "assistant", where) for name in ("chosen", "rejected"))
    prompt = _lead(chosen)
    return pl.DataFrame({"prompt": prompt, "chosen": _last(chosen), "rejected": _after(prompt, rejected, where)})


def _judged(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    prompt, completion = turns(frame, "prompt", "user", where), turns(frame, "completion", "assistant", where)
    return pl.DataFrame(
        {"prompt": prompt, "completion": _after(prompt, completion, where), "label": _label(frame, where)}
    )


def _label(frame: pl.DataFrame, where: str) -> pl.Series:
    label = frame["label"]
    if label.dtype == pl.String or label.dtype.is_integer():
        lowered = label.cast(pl.String()).str.to_lowercase()
        if lowered.drop_nulls().is_in(list(_LABELS)).all():
            return lowered.replace_strict(_LABELS, return_dtype=pl.Boolean())
    if label.dtype != pl.Boolean:
        raise DataError(what=f"column 'label' has the type {label.dtype}", where=where, mend="Give true/false or 1/0")
    return label


def _string(frame: pl.DataFrame, name: str, where: str) -> pl.Series:
    """A column of texts; whole numbers are written out, because readers of csv and json make numbers of them."""
    column = frame[name]
    if column.dtype.is_integer():
        return column.cast(pl.String())
    if column.dtype != pl.String:
        raise DataError(what=f"column '{name}' has the type {column.dtype}", where=where, mend="Give texts")
    return column


def _lead(conversation: pl.Series) -> pl.Series:
    """All turns but the last."""
    frame = conversation.alias("turns").to_frame()
    return frame.select(
        pl.col("turns").list.slice(0, pl.col("turns").list.len().cast(pl.Int64()).sub(1).clip(0))
    ).to_series()


def _last(conversation: pl.Series) -> pl.Series:
    return conversation.list.tail(1)


def _after(prompt: pl.Series, answer: pl.Series, where: str) -> pl.Series:
    """The answer's own turn; where the answer repeats the conversation, the turns before must be the prompt's."""
    both = pl.DataFrame({"prompt": prompt, "answer": answer}).with_columns(lead=_lead(answer))
    repeated = pl.col("lead").list.len() > 0
    differ = (
        both.select((repeated & (pl.col("lead") != pl.col("prompt"))).fill_null(value=False)).to_series().arg_true()
    )
    if len(differ):
        what = (
            f"row {differ[0]} (of {len(differ)}): '{answer.name}' has turns before its last that are not the prompt's"
        )
        raise DataError(what=what, where=where, mend="Both answers must follow the same conversation")
    return _last(answer)


def _with_problem(turned: pl.DataFrame, frame: pl.DataFrame, kind: Kind, where: str) -> pl.DataFrame:
    """With the key `problem`: the column of that name, or the hash of what was asked."""
    if "problem" not in COLUMNS[kind]:
        return turned
    if "problem" in frame.columns:
        return turned.with_columns(_string(frame, "problem", where).alias("problem"))
    asked = _lead(turned["messages"]) if kind == "chat" else turned["prompt"]
    return turned.with_columns(content_ids(asked.alias("prompt").to_frame(), ["prompt"]).alias("problem"))


def _with_margin(turned: pl.DataFrame, frame: pl.DataFrame, kind: Kind, where: str) -> pl.DataFrame:
    """With by how much the chosen answer is better: the column of that name, or 0, which is unknown."""
    if kind != "pairs":
        return turned
    if "margin" not in frame.columns:
        return turned.with_columns(margin=pl.lit(0.0))
    if not frame.schema["margin"].is_numeric():
        what = f"column 'margin' has the type {frame.schema['margin']}"
        raise DataError(what=what, where=where, mend="Give numbers, or rename the column")
    return turned.with_columns(frame["margin"].cast(pl.Float64()).alias("margin"))


LAYOUTS: Final[dict[Kind, dict[Layout, Turner]]] = {
    "corpus": {("text",): _text},
    "chat": {("messages",): _messages, ("prompt", "completion"): _demonstration},
    "prompts": {("prompt",): _prompt},
    "pairs": {("prompt", "chosen", "rejected"): _preference, ("chosen", "rejected"): _implicit_preference},
    "feedback": {("prompt", "completion", "label"): _judged},
    "rollouts": {},
    "scores": {},
}
"""Per table the layouts that are understood; the first whose columns are all there is taken."""

"""One pandera schema per table, for values and relations. Each rule states a requirement and a fix."""

from __future__ import annotations

import json
from functools import cache
from typing import Final, get_args

import pandera.polars as pa
import polars as pl

from posttrain.data.columns import (
    COLUMNS,
    CONTENT,
    CONTROL,
    DRAWN_FROM,
    OPTIONAL,
    ROLES,
    ROLLOUT_FIGURES,
    ROLLOUT_TEXT,
    SPLITS,
    TEXT_LIMIT,
    TOOL_USE,
    TRAINING_TEXT,
    TRAINING_TOKENS,
    TURNS,
    VARIABLES,
    Kind,
    row_ids,
)
from posttrain.rollout import FAILED, Finish, Status

_LOGP_TOLERANCE: Final = 1e-4
"""A log-prob may exceed 0 by this much, because log-softmax rounds in float32."""
_NULLABLE: Final[dict[Kind, tuple[str, ...]]] = {
    "chat": (*TOOL_USE, VARIABLES),
    "prompts": (VARIABLES,),
    "pairs": ("subset", VARIABLES),
    "feedback": (VARIABLES,),
    "completions": ("gain",),
    "rollouts": (*ROLLOUT_TEXT, "reward", "info"),
    "training_rollouts": (
        *TRAINING_TEXT,
        *DRAWN_FROM,
        "step",
        "length",
        "logp",
        "finish",
        "reward",
        "outcome",
        "advantage",
    ),
    "regraded": ("step", "before", "reward"),
    "matches": ("margin", "win"),
}


_JSON: Final = {"info": dict, "sampling": dict, "turns": list, VARIABLES: dict, **dict.fromkeys(TOOL_USE, list)}
"""Columns of JSON texts -> the type that each text must have."""


@cache
def schema_of(kind: Kind) -> pa.DataFrameSchema:
    """Return the schema of a table: its columns in order, optional columns last, with their rules."""
    optional, nullable = OPTIONAL.get(kind, {}), _NULLABLE.get(kind, ())
    columns = {
        name: pa.Column(dtype, checks=_rules(kind, name), required=name not in optional, nullable=name in nullable)
        for name, dtype in (COLUMNS[kind] | optional).items()
    }
    return pa.DataFrameSchema(columns, strict=True, ordered=True, name=kind)


def _rule(requirement: str, fix: str, holds: pl.Expr) -> pa.Check:
    def check(data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select(holds)

    return pa.Check(check, name=requirement, error=f"{requirement}; {fix}", n_failure_cases=1)


def _rules(kind: Kind, name: str) -> list[pa.Check]:
    if name == "id":
        return _id_rules(kind)
    if name == "split":
        return [_one_of("split", SPLITS[kind])]
    if name == "problem":
        return _problem_rules(kind)
    if name == "task" and kind != "documents":  # whose tasks are those of lm-eval
        return [_rule("must be empty or the name of a task", "rename it", pl.col("task").str.contains(r"^\S*$"))]
    base = _turn_rules(name) if COLUMNS[kind].get(name) == TURNS else [_json_rule(name)] if name in _JSON else []
    return [*base, *_RULES.get((kind, name), [])]


def _id_rules(kind: Kind) -> list[pa.Check]:
    def matches(data: pa.PolarsData) -> pl.LazyFrame:
        frame = data.lazyframe.collect()
        return pl.LazyFrame({"id": frame["id"] == row_ids(frame, kind)})

    requirement = f"must be the hash of {' + '.join(CONTENT[kind])}"
    error = f"{requirement}; compute the ids with with_ids()"
    hashed = pa.Check(matches, name=requirement, error=error, n_failure_cases=1)
    return [_rule("must be unique", "remove duplicate rows", pl.col("id").is_unique()), hashed]


def _problem_rules(kind: Kind) -> list[pa.Check]:
    rules = [_nonblank("problem")]
    if SPLITS[kind]:
        split = pl.col("split")
        alone = split.min().over("problem") == split.max().over("problem")
        rules.append(_rule("must be in one split only", "put all rows of a problem into one split", alone))
    return rules


def _one_of(name: str, known: tuple[str, ...]) -> pa.Check:
    return _rule(f"must be one of {', '.join(known)}", "rename it", pl.col(name).is_in(known))


def _nonblank(name: str) -> pa.Check:
    return _rule("must not be blank", "fill it in or drop the row", pl.col(name).str.strip_chars() != "")


def _json_rule(name: str) -> pa.Check:
    """Return the rule that a cell contains a JSON object or a list of objects. Each distinct text is parsed once."""

    def check(data: pa.PolarsData) -> pl.LazyFrame:
        texts = data.lazyframe.select(name).collect()[name]
        valid = [text for text in texts.unique().drop_nulls() if _is_json(text, _JSON[name])]
        return pl.LazyFrame({name: texts.is_in(valid)})

    requirement = "must be a JSON object" if _JSON[name] is dict else "must be a JSON list of objects"
    example = "{}" if _JSON[name] is dict else "[]"
    return pa.Check(check, name=requirement, error=f"{requirement}; write {example} if it is empty", n_failure_cases=1)


def _is_json(text: str, kind: type) -> bool:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if kind is dict:
        return isinstance(parsed, dict)
    return isinstance(parsed, list) and all(isinstance(one, dict) for one in parsed)


def _text_rules(name: str) -> list[pa.Check]:
    text, at_most = pl.col(name), f"must be at most {TEXT_LIMIT:,} characters"
    return [
        _nonblank(name),
        _rule(at_most, "split it into documents", text.str.len_chars() <= TEXT_LIMIT),
        _rule("must not contain control characters", "remove them", ~text.str.contains(CONTROL)),
    ]


def _turn_rules(name: str) -> list[pa.Check]:
    turns, role, content = pl.col(name), pl.element().struct.field("role"), pl.element().struct.field("content")

    def every(holds: pl.Expr) -> pl.Expr:
        return turns.list.eval(holds.fill_null(value=False)).list.all()

    at_most = f"each content must be at most {TEXT_LIMIT:,} characters"
    later = turns.list.slice(1).list.eval((role == "system").fill_null(value=False))
    rules = [
        _rule("must have a turn", "add one or drop the row", turns.list.len() > 0),
        _rule(f"each role must be one of {', '.join(ROLES)}", "rename the role", every(role.is_in(ROLES))),
        _filled_in(every(content.str.strip_chars() != "")),
        _rule(at_most, "shorten it or drop the row", every(content.str.len_chars().fill_null(0) <= TEXT_LIMIT)),
        _rule("only the first turn may have the role system", "merge the system turns", ~later.list.any()),
    ]
    if name in ("messages", "prompt"):  # answers may come from a policy, which may sample any byte
        clean = every(~content.str.contains(CONTROL).fill_null(value=False))
        rules.append(_rule("no content may contain control characters", "remove them", clean))
    return rules


def _filled_in(holds: pl.Expr) -> pa.Check:
    """Return the rule that every turn has content or calls a tool."""

    def check(data: pa.PolarsData) -> pl.LazyFrame:
        if "fields" not in data.lazyframe.collect_schema():
            return data.lazyframe.select(holds)
        calls = pl.col("fields").str.contains('"tool_calls"', literal=True).fill_null(value=False)
        return data.lazyframe.select(holds | calls)

    requirement = "each content must not be blank"
    return pa.Check(check, name=requirement, error=f"{requirement}; fill it in or drop the row", n_failure_cases=1)


def _last_role(name: str, role: str) -> pa.Check:
    last = pl.col(name).list.last().struct.field("role")
    return _rule(f"must end with a turn of the role {role}", "add the turn or drop the row", last == role)


def _chat_rules() -> list[pa.Check]:
    asked = pl.col("messages").list.eval(pl.element().struct.field("role") == "user").list.any()
    return [_last_role("messages", "assistant"), _rule("must have a user turn", "add the question", asked)]


def _answer_turn(name: str) -> list[pa.Check]:
    at_most_one = pl.col(name).list.len() <= 1
    return [_last_role(name, "assistant"), _rule("must be one turn", "remove the prompt from it", at_most_one)]


def _rejected_rules() -> list[pa.Check]:
    chosen, rejected = (
        pl.col(name).list.eval(pl.element().struct.field("content")).list.join("\n").str.strip_chars()
        for name in ("chosen", "rejected")
    )
    return [*_answer_turn("rejected"), _rule("must differ from chosen", "drop the pair", chosen != rejected)]


def _margin_rules() -> list[pa.Check]:
    margin = pl.col("margin")
    return [_rule("must be finite and not below 0", "use 0 for unknown", margin.is_finite() & (margin >= 0))]


def _sample_rules(*of: str) -> list[pa.Check]:
    group, sample = (*of, "prompt_id", "greedy"), pl.col("sample")
    size, most = pl.len().over(group), pl.len().over(group).max().over(*of, "greedy")
    ends = (sample.min().over(group) == 0) & (sample.max().over(group) == size - 1)
    numbered = ends & (sample.n_unique().over(group) == size)
    whole = f"samples of one ({', '.join(group)}) must be numbered 0..n-1"
    even = "groups of one policy must have the same number of samples"
    return [
        _rule(whole, "sample the whole group again", numbered),
        _rule(even, "sample the rest of the group or drop it", size == most),
    ]


def _prompt_id_rules() -> list[pa.Check]:
    problem = pl.col("problem")
    same = problem.min().over("prompt_id") == problem.max().over("prompt_id")
    named = _rule("must belong to one problem", "take both from the prompts table", same)
    missing, text = pl.col("logps").is_null(), pl.col("prompt").is_not_null()
    measured = ~(missing & text) | (missing | ~text).all().over("policy")
    some = _rule("must have logps, or no row of its policy has them", "evaluate it again", measured)
    return [_nonblank("prompt_id"), named, _text_or_figures(), some]


def _text_or_figures() -> pa.Check:
    """Return the rule that a row has all of its text, or none of it if the table has the numbers instead."""

    def check(data: pa.PolarsData) -> pl.LazyFrame:
        nulls = [pl.col(name).is_null() for name in ROLLOUT_TEXT]
        whole = ~pl.any_horizontal(nulls[:-1])  # log-probs are null where a reward model has measured
        if ROLLOUT_FIGURES.keys() <= set(data.lazyframe.collect_schema()):
            whole |= pl.all_horizontal(nulls)
        return data.lazyframe.select(whole)

    requirement = f"must have {', '.join(ROLLOUT_TEXT)}, or none of them but {' and '.join(ROLLOUT_FIGURES)}"
    return pa.Check(check, name=requirement, error=f"{requirement}; evaluate it again", n_failure_cases=1)


def _text_or_none() -> pa.Check:
    """Return the rule that a row has all its text, none, or all except tokens (rollouts of other libraries)."""
    nulls = {name: pl.col(name).is_null() for name in TRAINING_TEXT}
    tokens = pl.all_horizontal(nulls[name] for name in TRAINING_TOKENS)
    said = ~pl.any_horizontal(null for name, null in nulls.items() if name not in TRAINING_TOKENS)
    whole = ~pl.any_horizontal(nulls.values()) | pl.all_horizontal(nulls.values()) | (tokens & said)
    requirement = f"must have all of {', '.join(TRAINING_TEXT)}, or none of them, or no tokens"
    return _rule(requirement, "train again", whole)


def _drawn_rules() -> list[pa.Check]:
    sample, size = pl.col("sample"), pl.len().over("draw")
    numbered = (sample.min().over("draw") == 0) & (sample.max().over("draw") == size - 1)
    numbered &= (sample.n_unique().over("draw") == size) & (size == pl.len().over("draw").max())
    same = pl.col("prompt_id").min().over("draw") == pl.col("prompt_id").max().over("draw")
    return [
        _rule("the samples of a draw must be numbered 0..n-1, n the same for all", "train again", numbered),
        _rule("the samples of a draw must have one prompt", "train again", same),
    ]


def _finite_rule(name: str, fix: str = "train again") -> pa.Check:
    return _rule("must be finite, or missing", fix, pl.col(name).is_finite())


def _score_rule() -> pa.Check:
    missing = pl.col("status").is_in(sorted(FAILED))
    requirement = "must be finite, or missing where the status is a failure"
    return _rule(requirement, "fix the reward that returned it", pl.col("reward").is_finite().fill_null(missing))


def _token_id_rules(name: str) -> list[pa.Check]:
    ids = pl.col(name)
    valid = ids.list.eval((pl.element() >= 0).fill_null(value=False)).list.all()
    return [
        _rule("must have a token", "keep the stop token", ids.list.len() > 0),
        _rule("each must be a token id >= 0", "sample the completion again", valid),
    ]


def _logp_rules() -> list[pa.Check]:
    logps, logp = pl.col("logps"), pl.element()
    finite = logps.list.eval(logp.is_finite().fill_null(value=False)).list.all()
    negative = logps.list.eval((logp <= _LOGP_TOLERANCE) | logp.is_nan()).list.all()
    same = logps.list.len() == pl.col("mask").list.sum()
    return [
        _rule("must have one number for each token of the mask", "record one log-prob per sampled token", same),
        _rule("each must be finite", "lower the temperature or the learning rate", finite),
        _rule("each must be <= 0", "give log-probabilities, not probabilities", negative),
    ]


def _kept_rules() -> list[pa.Check]:
    ids, counts = pl.col("kept_ids"), pl.col("kept_counts")
    of_tokens = (counts.list.len() == pl.col("logps").list.len()) & (counts.list.sum() == ids.list.len())
    return [_rule("must count the kept tokens of each sampled one", "train again", of_tokens)]


def _mask_rules() -> list[pa.Check]:
    mask = pl.col("mask")
    same = mask.list.len() == pl.col("completion_ids").list.len()
    outer = mask.list.first() & mask.list.last()
    return [
        _rule("must be as long as completion_ids", "give one value per token", same),
        _rule("must begin and end with a sampled token", "mark the tokens of the policy, and those alone", outer),
    ]


_RULES: Final[dict[tuple[Kind, str], list[pa.Check]]] = {
    ("corpus", "text"): _text_rules("text"),
    ("chat", "messages"): _chat_rules(),
    ("prompts", "prompt"): [_last_role("prompt", "user")],
    ("pairs", "prompt"): [_last_role("prompt", "user")],
    ("pairs", "chosen"): _answer_turn("chosen"),
    ("pairs", "rejected"): _rejected_rules(),
    ("pairs", "margin"): _margin_rules(),
    ("feedback", "prompt"): [_last_role("prompt", "user")],
    ("feedback", "completion"): _answer_turn("completion"),
    ("completions", "prompt_id"): [_nonblank("prompt_id")],
    ("completions", "sample"): _sample_rules(),
    ("completions", "prompt_ids"): _token_id_rules("prompt_ids"),
    ("completions", "completion_ids"): _token_id_rules("completion_ids"),
    ("completions", "mask"): _mask_rules(),
    ("completions", "logps"): _logp_rules(),
    ("completions", "finish"): [_one_of("finish", get_args(Finish))],
    ("completions", "gain"): [_finite_rule("gain", "sample it again")],
    ("rollouts", "prompt_id"): _prompt_id_rules(),
    ("rollouts", "policy"): [_nonblank("policy")],
    ("rollouts", "sample"): _sample_rules("policy"),
    ("rollouts", "prompt"): [_last_role("prompt", "user")],
    ("rollouts", "completion_ids"): _token_id_rules("completion_ids"),
    ("rollouts", "mask"): _mask_rules(),
    ("rollouts", "logps"): _logp_rules(),
    ("rollouts", "status"): [_one_of("status", get_args(Status))],
    ("rollouts", "reward"): [_score_rule()],
    ("rollouts", "length"): [_rule("must be at least 1", "evaluate it again", pl.col("length") > 0)],
    ("rollouts", "logp"): [_rule("must be finite", "evaluate it again", pl.col("logp").is_finite())],
    ("training_rollouts", "prompt_id"): [_nonblank("prompt_id"), _text_or_none()],
    ("training_rollouts", "draw"): _drawn_rules(),
    ("training_rollouts", "version"): [_nonblank("version")],
    ("training_rollouts", "prompt_ids"): _token_id_rules("prompt_ids"),
    ("training_rollouts", "completion_ids"): _token_id_rules("completion_ids"),
    ("training_rollouts", "mask"): _mask_rules(),
    ("training_rollouts", "logps"): _logp_rules(),
    ("training_rollouts", "kept_counts"): _kept_rules(),
    ("training_rollouts", "length"): [_rule("must be at least 1", "train again", pl.col("length") > 0)],
    ("training_rollouts", "finish"): [_one_of("finish", get_args(Finish))],
    ("training_rollouts", "reward"): [_finite_rule("reward")],
    ("training_rollouts", "outcome"): [_finite_rule("outcome")],
    ("training_rollouts", "advantage"): [_finite_rule("advantage")],
    ("regraded", "rollout"): [_nonblank("rollout")],
    ("regraded", "prompt_id"): [_nonblank("prompt_id")],
    ("regraded", "before"): [_finite_rule("before", "regrade again")],
    ("regraded", "reward"): [_score_rule()],
    ("regraded", "status"): [_one_of("status", get_args(Status))],
    ("matches", "prompt_id"): [_nonblank("prompt_id")],
    ("matches", "second"): [_rule("must differ from first", "drop the match", pl.col("first") != pl.col("second"))],
    ("matches", "win"): [
        _rule("must be 0, 0.5 or 1", "rate the policies again", pl.col("win").is_in([0.0, 0.5, 1.0])),
        _rule("must agree with margin", "rate the policies again", pl.col("win") == (pl.col("margin").sign() + 1) / 2),
    ],
    ("matches", "status"): [
        _rule(
            "must be ok where there is a win",
            "rate the policies again",
            pl.col("win").is_not_null() == (pl.col("status") == "ok"),
        )
    ],
}

"""The episodes that prime-rl writes, one verifiers Episode per line: rollouts/step_N/{train,eval}/SUBSET/traces.jsonl.

SUBSET is `all`, or `effective` for the episodes that a step was trained on. An episode has traces, one per agent. A
trace is a graph of messages with their tokens. If it has several branches, the last is read, as verifiers' own
`messages` does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.pipeline.outside.rollouts.sampled import Sampled, text_of, turns_of, unreadable
from posttrain.pipeline.tables.readers import Columns, Row, file_part
from posttrain.rollout import Finish, Score, TokenRow

FILE: Final = "traces.jsonl"
_STEP: Final = re.compile(r"step_(\d+)/")
_CUT: Final = ("max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length")
_FIX: Final = "Give files that prime-rl wrote (verifiers' episodes with traces), or remove this row"


def read(folder: Path) -> Iterator[Sampled]:
    """Yield the traces of training, or of evaluation if there are no others."""
    files = sorted(folder.rglob(FILE), key=lambda file: (_step(file), str(file)))
    files = [file for file in files if "eval" not in file.parts] or files
    trained = {
        (_step(file), episode["id"]) for file in files if "effective" in file.parts for _, episode in _rows(file)
    }
    every = [file for file in files if "effective" not in file.parts]
    for file in every or files:
        grouped: dict[tuple[str, str], list[Sampled]] = {}
        for number, episode in _rows(file):
            for trace in _traces(episode):
                try:
                    sampled = _sampled(episode, trace, file, number)
                except (LookupError, TypeError, ValueError) as error:
                    raise unreadable(file, number, f"it cannot be read ({error!r:.100})", _FIX) from error
                if (_step(file), episode["id"]) in trained:
                    sampled.step = sampled.round
                grouped.setdefault(sampled.group, []).append(sampled)
        for group in _groups(grouped):  # episodes are written as they end
            yield from group


def _groups(grouped: dict[tuple[str, str], list[Sampled]]) -> Iterator[list[Sampled]]:
    """Yield the groups.

    An episode that failed without an agent or a message gets the group's first agent and prompt.
    """
    for key in [key for key in grouped if not key[1]]:
        if whole := next((other for other in grouped if other[0] == key[0] and other[1]), None):
            grouped[whole] += grouped.pop(key)
    for group in grouped.values():
        prompt = next((sampled.prompt for sampled in group if sampled.completion), group[0].prompt)
        for sampled in group:
            sampled.group, sampled.prompt = group[0].group, sampled.prompt if sampled.completion else prompt
        yield group


def _step(file: Path) -> int:
    match = _STEP.search(file.as_posix())
    return int(match[1]) if match else 0


def _rows(file: Path) -> Iterator[tuple[int, Row]]:
    for number, row in file_part(file).read(Columns(frozenset())):
        if isinstance(row, str):
            raise unreadable(file, number, row, _FIX)
        if not isinstance(row.get("id"), str) or not isinstance(row.get("traces"), list):
            raise unreadable(file, number, "it is not an episode: it has no id or no traces", _FIX)
        yield number, row


def _traces(episode: Row) -> list[Mapping[str, Any]]:
    """Return the traces that train the policy. An episode without any failed before its first message."""
    trainable = [trace for trace in episode["traces"] if trace["agent"].get("trainable", True)]
    return trainable or [{"task": episode["task"], "agent": {}, "ok": False, "errors": episode.get("errors", [])}]


def _sampled(episode: Row, trace: Mapping[str, Any], file: Path, number: int) -> Sampled:
    nodes, work = _branch(trace.get("nodes", [])), episode.get("run", {}).get("work", {})
    first = next((place for place, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    asked, answered = ([node["message"] for node in some] for some in (nodes[:first], nodes[first:]))
    data = trace["task"]["data"]
    given = asked or data.get("prompt") or str(data.get("idx", ""))
    calls, rewards = trace.get("calls", []), trace.get("rewards", {})
    finish = _finish(trace, calls)
    credit = [value for node in nodes for value in node.get("advantages") or ()]
    tokens = _tokens(nodes)
    return Sampled(
        group=(str(episode.get("group", {}).get("id", episode["id"])), str(trace["agent"].get("name", ""))),
        round=_step(file),
        prompt=turns_of(given, "prompt", file, number),
        completion=text_of([(turn["role"], _content(turn)) for turn in answered]) if answered else "",
        scores={key: _score(reward) for key, reward in rewards.items()},
        weights={key: float(reward["weight"]) for key, reward in rewards.items() if reward},
        finish=finish, version=_version(work), advantage=math.fsum(credit) / len(credit) if credit else None,
        length=len(tokens[1]) if tokens else None, tokens=tokens,
        sampling=calls[0].get("sampling") or {} if calls else {},
        info={key: trace[key] for key in ("id", "stop_condition", "metrics", "errors") if trace.get(key)},
        task=str(episode.get("env", {}).get("name") or episode.get("env", {}).get("id", "")),
    )  # fmt: skip


def _branch(nodes: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages from the first to the last."""
    path: list[Mapping[str, Any]] = []
    place = len(nodes) - 1 if nodes else None
    while place is not None:
        path.append(nodes[place])
        place = nodes[place].get("parent")
    return path[::-1]


def _content(turn: Mapping[str, Any]) -> str:
    """Return a turn's text and tool calls."""
    content = turn.get("content") or ""
    said = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    calls = [f"{call['name']}({call['arguments']})" for call in turn.get("tool_calls") or ()]
    return "\n".join(filter(None, [turn.get("reasoning_content"), said, *calls]))


def _tokens(nodes: list[Mapping[str, Any]]) -> tuple[TokenRow, list[float]] | None:
    """Return the tokens up to the last sampled one, and the log-probs of the sampled tokens."""
    ids = [token for node in nodes for token in node.get("token_ids", ())]
    mask = [value for node in nodes for value in node.get("mask", ())]
    logps = [value for node in nodes for value in node.get("logprobs", ())]
    if True not in mask or len(ids) != len(mask) or len(logps) != sum(mask):
        return None
    first, end = mask.index(True), len(mask) - mask[::-1].index(True)
    return TokenRow(ids[:first], ids[first:end], mask[first:end]), logps


def _score(reward: Mapping[str, Any] | None) -> Score:
    """Return a reward's score. If the trace failed earlier, there is none."""
    return Score(0.0, "error") if reward is None else Score(float(reward["score"]))


def _finish(trace: Mapping[str, Any], calls: list[Mapping[str, Any]]) -> Finish:
    stopped = trace.get("stop_condition")
    if not trace.get("ok", False):
        late = [trace.get("is_timeout"), *("timeout" in str(e.get("type")).lower() for e in trace.get("errors", ()))]
        return "timeout" if any(late) else "error"
    last: Mapping[str, Any] = next((call for call in reversed(calls) if not call.get("error")), {})
    if stopped in _CUT or last.get("finish_reason") == "length":
        return "length"
    return "turns" if stopped == "max_turns" else "stop"


def _version(work: Mapping[str, Any]) -> str:
    policy = work.get("policy") or {}
    return f"step {policy['start']}" if "start" in policy else ""

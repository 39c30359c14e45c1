"""Write episodes as prime-rl does, by verifiers' own classes: python write_prime_rl.py FOLDER, where verifiers is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo, WireEpisode
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, Error, ModelCall, Reward, TraceTask, WireTrace
from verifiers.v1.types import AssistantMessage, SamplingConfig, UserMessage


def episode(step: int, group: int, asked: str, said: str, reward: float | None, finish: str = "stop") -> Any:
    """Return an episode of one turn; without a reward its agent has failed."""
    ok = reward is not None
    task = TraceTask(type="Sums", data=WireTaskData(idx=group, prompt=asked))
    answer = MessageNode(
        parent=0, message=AssistantMessage(content=said), sampled=True, token_ids=[2, 6, 7], timestamp=1.0,
        mask=[False, True, True], logprobs=[-0.5, -0.25], advantages=[0.5, 0.5] if ok else None,
    )  # fmt: skip
    question = MessageNode(
        parent=None, message=UserMessage(content=asked), token_ids=[3, 4, 5], mask=[False] * 3, timestamp=1.0
    )
    sampling = SamplingConfig(temperature=0.8, top_p=1.0, max_tokens=16)
    trace = WireTrace(
        id=f"{step}{group}{len(said):030d}", task=task, agent=AgentInfo(config=WireAgentConfig(), name="solver"),
        nodes=[question, answer], calls=[ModelCall(node=1, model="tiny", sampling=sampling, finish_reason=finish)],
        rewards={"correct": Reward(score=reward, weight=1.0) if ok else None, "brief": Reward(score=0.5, weight=0.2)},
        ok=ok, is_completed=True, stop_condition="agent_completed" if ok else "error",
        errors=[] if ok else [Error(type="ProviderTimeoutError", message="no answer")],
    )  # fmt: skip
    work = TrainWorkInfo(step=step, policy=PolicySpan(start=step - 1, end=step - 1))
    return WireEpisode(
        id=f"{step}{group}{said[:9]}", env=EnvInfo(id="sums", name="sums"), task=task, ok=ok, traces=[trace],
        group=GroupInfo(id=f"{step}-{group}"), run=TrainRunInfo(id="run", work=work),
    )  # fmt: skip


def write(path: Path, episodes: list[Any]) -> None:
    """Write a line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one.to_record(), default=str) + "\n" for one in episodes), encoding="utf-8")


root = Path(sys.argv[1])
first, second = "What is 1+1?", "What is 2+1?"
one = [
    episode(1, 0, first, "It is 2", 1.0),
    episode(1, 1, second, "It is 4", 0.0),
    episode(1, 0, first, "It is 3", 0.0),
    episode(1, 1, second, "It is long", 0.0, finish="length"),
]
two = [episode(2, 0, first, "It is 2!", 1.0), episode(2, 0, first, "two", None)]
failed = {"ok": False, "errors": [Error(type="SandboxError", message="no box")], "traces": []}
third = episode(2, 1, second, "It is 3!", 1.0)
lost = third.model_copy(update={"id": "lost", **failed})
write(root / "step_1/train/all/traces.jsonl", one)
write(root / "step_1/train/effective/traces.jsonl", [one[0], one[2]])
write(root / "step_2/train/all/traces.jsonl", [*two, lost, third])
write(root / "step_1/eval/all/traces.jsonl", one[:1])

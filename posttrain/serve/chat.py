"""`posttrain chat`: a conversation with a model in the terminal."""

from __future__ import annotations

import contextlib
import secrets

from posttrain.errors import PosttrainError
from posttrain.params.params import check
from posttrain.sampling.sampler import SamplingParams
from posttrain.serve.policy import Job, Policy


def chat(model: str, temperature: float) -> str:
    """Answer line by line until the end of the input."""
    given = {"temperature": temperature} if temperature else {}
    sampling = check(SamplingParams, given, where="posttrain chat", file="command line")
    policy, turns = Policy(model, threads=1), list[dict[str, str]]()
    print(f"chatting with {model}; an empty line starts again, Ctrl-D ends")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            said = input("> ")
            turns = [*turns, {"role": "user", "content": said}] if said.strip() else []
            if not turns:
                continue
            seed = secrets.randbits(63)
            (found,) = policy.answer([Job(turns, sampling, seed=seed, greedy=temperature == 0)])
            if isinstance(found, PosttrainError):
                turns = turns[:-1]
                print(f"error: {found}")
                continue
            print(found.answers[0].text)
            turns.append({"role": "assistant", "content": found.answers[0].text})
    return "\nthe chat has ended"

"""`posttrain chat`: talk to a model in the terminal."""

from __future__ import annotations

import contextlib
import secrets
from argparse import ArgumentParser, Namespace

EXAMPLE = "online/grpo --temperature 0"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a model and sampling options."""
    parser.add_argument("model", metavar="MODEL", help="a folder, or a model under models/, e.g. online/grpo")
    likeliest = "default: 1; 0: the likeliest token at each step"
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help=likeliest)


def run(arguments: Namespace) -> str:
    """Answer line by line until the input ends."""
    from posttrain.errors import PosttrainError
    from posttrain.pipeline.serve.policy import Job, Policy
    from posttrain.sampling.sampler import SamplingParams
    from posttrain.settings.params import check

    temperature: float = arguments.temperature
    given = {"temperature": temperature} if temperature else {}
    sampling = check(SamplingParams, given, where="posttrain chat", file="command line")
    policy, turns = Policy(arguments.model, threads=1), list[dict[str, str]]()
    print(f"chatting with {arguments.model}; an empty line starts again, Ctrl-D ends")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            said = input("> ")
            turns = [*turns, {"role": "user", "content": said}] if said.strip() else []
            if not turns:
                continue
            seed = secrets.randbits(63)
            (answers,) = policy.answer([Job(turns, sampling, seed=seed, greedy=temperature == 0)])
            if isinstance(answers, PosttrainError):
                turns = turns[:-1]
                print(f"error: {answers}")
                continue
            print(answers.answers[0].text)
            turns.append({"role": "assistant", "content": answers.answers[0].text})
    return "\nthe chat has ended"

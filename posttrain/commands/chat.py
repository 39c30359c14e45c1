"""`posttrain chat`: a conversation with a model in the terminal."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "online/grpo --temperature 0"


def add_arguments(parser: ArgumentParser) -> None:
    """Take a model and how to sample."""
    parser.add_argument("model", metavar="MODEL", help="a folder, or a model under models/, e.g. online/grpo")
    likeliest = "default: 1; 0 takes the likeliest token at each step"
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help=likeliest)


def run(arguments: Namespace) -> str:
    """Talk until the input ends."""
    from posttrain.serve.chat import chat

    return chat(arguments.model, arguments.temperature)

"""`posttrain serve`: serve a model with an OpenAI-compatible API on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "online/grpo --port 8000"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a model, a port and threads."""
    parser.add_argument("model", metavar="MODEL", help="a folder, or a model under models/, e.g. online/grpo")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0: any free port")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads; default: 1")


def run(arguments: Namespace) -> str:
    """Serve until it is stopped."""
    from posttrain.pipeline.serve.server import serve

    return serve(arguments.model, arguments.port, arguments.threads)

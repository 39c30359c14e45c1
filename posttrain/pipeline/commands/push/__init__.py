"""`posttrain push`: upload a policy's model and model card to the Hugging Face Hub, or write it as a file, e.g.

GGUF.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "grpo --to hf:OWNER/NAME --dry-run"
DOING = "reading the model and its record"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a policy and a destination."""
    parser.add_argument("policy", metavar="POLICY", help="a label of evaluate.policies, or its model, e.g. online/grpo")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--to", metavar="hf:OWNER/NAME", help="the repository; it is created if it does not exist")
    place.add_argument(
        "--gguf",
        metavar="FILE",
        help="write the model to this GGUF file (for llama.cpp and others) instead of uploading it",
    )
    other = "write the model to this file in a plugin's format instead of uploading it"
    place.add_argument("--export", nargs=2, metavar=("FORMAT", "FILE"), help=other)
    parser.add_argument("--public", action="store_true", help="make a new repository public; default: private")
    parser.add_argument("--dry-run", action="store_true", help="show the files and the card without uploading them")
    numbers = "number format of the GGUF file; default: float16"
    parser.add_argument("--dtype", choices=("float16", "float32"), help=numbers)


def run(arguments: Namespace) -> str:
    """Push the model."""
    from posttrain.errors import ParamsError
    from posttrain.pipeline.commands.push.upload import export, push

    of_hub = [name for name in ("public", "dry_run") if getattr(arguments, name)]
    format_, file = ("gguf", arguments.gguf) if arguments.export is None else arguments.export
    if file is not None:
        if of_hub:
            name = f"--{of_hub[0].replace('_', '-')}"
            raise ParamsError(what="it works only with --to", where=name, fix=f"Remove {name}, or add --to")
        return export(arguments.policy, format_, file, arguments.dtype or "float16")
    if arguments.dtype is not None:
        raise ParamsError(what="it works only with --gguf", where="--dtype", fix="Remove --dtype, or add --gguf")
    return push(
        arguments.policy,
        arguments.to,
        "public" if arguments.public else "private",
        "show" if arguments.dry_run else "upload",
    )

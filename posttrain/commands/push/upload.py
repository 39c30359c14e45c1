"""Uploads a policy's model folder and its card to the Hub, in one commit; or writes the model as a GGUF file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import polars as pl

from posttrain.commands.promote.promotion import named_policy, require_current
from posttrain.commands.push.card import card
from posttrain.commands.push.gguf_file import Type, write_gguf
from posttrain.errors import ModelError, ParamsError, PipelineError
from posttrain.measure.masking import masked
from posttrain.params.params import PARAMS_FILE, read
from posttrain.params.stage_table import evaluated
from posttrain.tables.hub_errors import unreachable
from posttrain.tables.store import read_table
from posttrain.workspace import table_path

CARD = "README.md"
CHECKED = 4
"""Prompts on which a GGUF file is compared with its model."""
_TARGET = re.compile(r"hf:([\w.-]+/[\w.-]+)")


def scored_policy(name: str, kind: Literal["prompts", ""] = "") -> tuple[str, str]:
    """Return the label and the model of a policy that has a score, of this kind of table: lm-eval gives none."""
    asked, model = named_policy(name)
    for label, run in evaluated(read()).items():
        if name in (label, run.model) and run.rows == "rollouts" and run.table.endswith(kind):
            return label, model
    what = f"{asked} has no score{' on prompts' * bool(kind)}, which --{'gguf' if kind else 'to'} needs"
    raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Add {model} to evaluate.policies, or name its label there")


def push(name: str, to: str, access: Literal["public", "private"], does: Literal["upload", "show"]) -> str:
    """Upload a policy's model, or show what would be uploaded."""
    target = _TARGET.fullmatch(to)
    if target is None:
        raise ParamsError(what=f"'{to}' is no repository", where="--to", fix="Write hf:OWNER/NAME")
    label, model = scored_policy(name)
    require_current(label)
    folder = Path("models") / model
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise ModelError(what="it has no files", where=str(folder), fix="Run it, or dvc checkout")
    text = card(label, model, target[1].partition("/")[2])
    if text != masked(text):
        fix = "Remove it from params.yaml, and change it where it was made: git may have it"
        raise ParamsError(what="the card would show the value of a secret variable", where=str(folder), fix=fix)
    named = {file.relative_to(folder).as_posix(): file for file in files if file != folder / CARD}
    sizes = "\n".join(f"{file.stat().st_size:>12,}  {path}" for path, file in named.items())
    listed = f"{sizes}\n{len(text.encode()):>12,}  {CARD}"
    if does == "show":
        return f"to {target[1]} ({access} if it is new):\n{listed}\n\n{text}"
    return f"{listed}\n{_upload(target[1], named, text, access)}"


def export(name: str, file: str, dtype: Type) -> str:
    """Write a policy's model as a GGUF file, checked on prompts that it was evaluated on."""
    label, model = scored_policy(name, "prompts")
    require_current(label)
    table = read_table(table_path(evaluated(read())[label].table), "prompts")
    conversations = table.filter(pl.col("split") != "train")["prompt"].head(CHECKED).to_list()
    return write_gguf(Path("models") / model, model, conversations, Path(file), dtype)


def _upload(repository: str, files: dict[str, Path], text: str, access: str) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        fix = "Set HF_TOKEN to a token that may write, or log in with `hf auth login`"
        raise PipelineError(what="there is no token", where=repository, fix=fix)
    operations = [CommitOperationAdd(CARD, text.encode())]
    operations += [CommitOperationAdd(path, str(file)) for path, file in files.items()]
    api = HfApi()
    try:
        api.create_repo(repository, private=access == "private", exist_ok=True)
        done = api.create_commit(repository, operations, commit_message="posttrain push")
    except HfHubHTTPError as error:
        status = error.response.status_code
        fixes = {401: "The token is invalid or has expired", 403: "Give HF_TOKEN a token that may write there"}
        what = f"the Hub refuses it (HTTP status {status})"
        raise PipelineError(what=what, where=repository, fix=fixes.get(status, "Try again later")) from error
    except Exception as error:  # the client lets errors of its HTTP library through
        if not unreachable(error):
            raise
        what = masked(f"the Hub cannot be reached ({type(error).__name__}: {' '.join(str(error).split())[:200]})")
        raise PipelineError(what=what, where=repository, fix="Try again: a commit is whole or not there") from error
    return str(done.commit_url)

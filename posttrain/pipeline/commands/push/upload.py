"""Upload a policy's model folder and card to the Hub in one commit, or write the model as a file of another format."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from posttrain.data.hub_errors import unreachable
from posttrain.errors import ModelError, ParamsError, PipelineError, shortened
from posttrain.measure.masking import masked
from posttrain.models.files.adapter_files import ADAPTED_CONFIG
from posttrain.models.files.import_model import FILES
from posttrain.models.files.store import LICENCES, MANIFEST
from posttrain.pipeline.commands.promote.promotion import named_policy, require_current
from posttrain.pipeline.commands.push.adapter import hub_base, uploaded
from posttrain.pipeline.commands.push.card import card
from posttrain.pipeline.commands.push.exporters import EXPORTERS, Dtype
from posttrain.pipeline.commands.target import target
from posttrain.pipeline.lineage.kept_inputs import require_kept
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lock.code_manifest import CODE
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import evaluated
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.settings.listing import looked_up

CARD = "README.md"
CHECKED = 4
"""The number of prompts on which an exported file is compared with its model."""
MANAGED: Final = (
    *(pattern for pattern in FILES if pattern not in (*LICENCES, CARD)),
    MANIFEST, ADAPTED_CONFIG, "pytorch_model*.bin*", "adapter_model.bin", "added_tokens.json",
    "additional_chat_templates/*",
)  # fmt: skip
"""Files that loaders treat as parts of a model."""
_TARGET = re.compile(r"hf:([\w.-]+/[\w.-]+)")


def scored_policy(name: str, kind: Literal["prompts", ""] = "") -> tuple[str, str]:
    """Return the label and model of a policy that has a score on this kind of table (not from lm-eval)."""
    asked, model = named_policy(name)
    for label, run in evaluated(read()).items():
        if name in (label, run.model) and run.rows == "rollouts" and run.table.endswith(kind):
            return label, model
    what = f"{asked} has no score{' on prompts' * bool(kind)}, which --{'gguf' if kind else 'to'} needs"
    raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Add {model} to evaluate.policies, or use its label there")


def push(name: str, to: str, access: Literal["public", "private"], does: Literal["upload", "show"]) -> str:
    """Upload a policy's model, or show what would be uploaded."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    target = _TARGET.fullmatch(to)
    if target is None:
        raise ParamsError(what=f"'{to}' is not a repository name", where="--to", fix="Write hf:OWNER/NAME")
    try:
        validate_repo_id(target[1])
    except HFValidationError as error:
        raise ParamsError(
            what=f"'{to}' is not a repository name: {error}", where="--to", fix="Choose another name"
        ) from error
    label, model = scored_policy(name)
    require_current(label)
    require_kept("push", more=[CODE])
    folder = Path("models") / model
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise ModelError(what="it has no files", where=str(folder), fix="Run `dvc repro` or `dvc checkout`")
    base = hub_base(folder, Lineage())
    text = card(label, model, target[1].partition("/")[2], base)
    if text != masked(text):
        fix = "Remove it from params.yaml and revoke the secret: it may be in git's history"
        raise ParamsError(what="the card would show the value of a secret variable", where=str(folder), fix=fix)
    named: dict[str, Path | bytes] = {file.relative_to(folder).as_posix(): file for file in files}
    named |= {**({} if base is None else uploaded(folder, base)), CARD: text.encode()}
    sizes = {path: len(file) if isinstance(file, bytes) else file.stat().st_size for path, file in named.items()}
    listed = "\n".join(f"{size:>12,}  {path}" for path, size in sizes.items())
    if does == "show":
        return f"to {target[1]} ({access} if it is new):\n{listed}\n{_seen_left_over(target[1], named)}\n{text}"
    return f"{listed}\n{upload(target[1], named, access)}"


def export(name: str, format_: str, file: str, dtype: Dtype) -> str:
    """Write a policy's model as a file of another format, checked on prompts of its evaluation."""
    exporter = looked_up(EXPORTERS, format_, "posttrain push")
    place = target(file, f"push --{format_}", exporter.ending)
    label, model = scored_policy(name, "prompts")
    require_current(label)
    table = read_table(table_path(evaluated(read())[label].table), "prompts")
    conversations = table.filter(pl.col("split") != "train")["prompt"].head(CHECKED).to_list()
    return exporter.write(Path("models") / model, model, conversations, place, dtype)


def left_over(present: Collection[str], new: Collection[str]) -> list[str]:
    """Return files of an earlier model in a repository that loaders would mix up with the new model.

    Other files and folders stay.
    """
    return sorted(
        name
        for name in set(present) - set(new)
        if any(name.count("/") == pattern.count("/") and fnmatchcase(name, pattern) for pattern in MANAGED)
    )


def upload(repository: str, files: Mapping[str, Path | bytes], access: str) -> str:
    """Replace a repository's model by these files in one commit. Return what was deleted, and the commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        fix = "Set HF_TOKEN to a token that may write, or log in with `hf auth login`"
        raise PipelineError(what="no token was found", where=repository, fix=fix)
    added = [CommitOperationAdd(path, file if isinstance(file, bytes) else str(file)) for path, file in files.items()]
    api = HfApi()
    try:
        api.create_repo(repository, private=access == "private", exist_ok=True)
        there = api.model_info(repository)
        old = left_over(_names(there), files)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [*added, *map(CommitOperationDelete, old)]
        done = api.create_commit(repository, operations, commit_message="posttrain push", parent_commit=there.sha)
    except HfHubHTTPError as error:
        status = error.response.status_code
        fixes = {401: "The token is invalid or has expired", 403: "Give HF_TOKEN a token that may write there"}
        what = f"the Hub rejected the upload (HTTP status {status})"
        raise PipelineError(what=what, where=repository, fix=fixes.get(status, "Try again later")) from error
    except Exception as error:  # the client lets errors of its HTTP library through
        if not unreachable(error):
            raise
        what = f"the Hub cannot be reached ({type(error).__name__}: {shortened(masked(str(error)), 200)})"
        raise PipelineError(
            what=what, where=repository, fix="Try again: a commit is uploaded completely or not at all"
        ) from error
    return _deleted(old) + str(done.commit_url)


def _seen_left_over(repository: str, new: Collection[str]) -> str:
    """Return the lines about files that would be deleted, as far as the repository can be read."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _deleted(left_over(_names(HfApi().model_info(repository, timeout=10)), new))
    except Exception as error:  # the client lets errors of its HTTP library through
        if not isinstance(error, HfHubHTTPError) and not unreachable(error):
            raise
        return "The repository is new or cannot be read: a push deletes what another model left in it.\n"


def _names(repository: Any) -> list[str]:
    return [file.rfilename for file in repository.siblings or ()]


def _deleted(names: list[str]) -> str:
    return "".join(f"{'deleted':>12}  {name}\n" for name in names)

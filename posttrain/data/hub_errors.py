"""Explain Hugging Face Hub errors in one line with a fix. No message contains the token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from posttrain.errors import DataError, ModelError

Repo = Literal["dataset", "model"]
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may read it"
_COPY = {
    "dataset": "copy the data into the workspace and list it under data.files",
    "model": "download the model elsewhere and list its folder under base.folders",
}


def hub_error(error: BaseException, repo: Repo, name: str, revision: str, where: str) -> DataError | ModelError:
    """Return a Hub library's error as one of posttrain's errors."""
    what, fix = _explained(list(_chain(error)), repo, name, revision)
    return (DataError if repo == "dataset" else ModelError)(what=what, where=where, fix=fix)


def unreachable(error: BaseException) -> bool:
    """Tell whether the Hub could not be reached or was not contacted."""
    return any(isinstance(raised, ConnectionError | TimeoutError) or _transport(raised) for raised in _chain(error))


def page(repo: Repo, name: str) -> str:
    """Return the URL of a data set or a model."""
    from huggingface_hub.constants import ENDPOINT

    return f"{ENDPOINT}/{'datasets/' if repo == 'dataset' else ''}{name}"


def _explained(chain: list[BaseException], repo: Repo, name: str, revision: str) -> tuple[str, str]:
    from huggingface_hub import errors, get_token

    def is_caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(raised, kinds) for raised in chain)

    noun = "data set" if repo == "dataset" else "model"
    status = next((raised.response.status_code for raised in chain if isinstance(raised, errors.HfHubHTTPError)), None)
    if is_caused_by(errors.GatedRepoError):
        accept = f"Accept its terms at {page(repo, name)}"
        known = get_token() is not None
        return (
            f"the {noun} '{name}' is gated",
            f"{accept} with the account of your token" if known else f"{accept}, then {_LOGIN}",
        )
    if is_caused_by(errors.LocalTokenNotFoundError) or (
        status == 401 and not is_caused_by(errors.RepositoryNotFoundError)
    ):
        return (
            "the Hub refuses your token: it is invalid or has expired",
            "Log in again with `hf auth login`, or set HF_TOKEN to a valid token",
        )
    if is_caused_by(errors.RevisionNotFoundError):
        return f"the {noun} '{name}' has no commit {revision}", f"Copy the commit from {page(repo, name)}/commits/main"
    if is_caused_by(errors.DisabledRepoError):
        return f"the Hub has disabled the {noun} '{name}'", f"Use another; {page(repo, name)} may say why"
    if is_caused_by(errors.RepositoryNotFoundError):
        return f"the {noun} '{name}' is not found, or is private", f"Check its name; if it is private, {_LOGIN}"
    if status in (403, 429) or (status or 0) >= 500:
        fixes = {403: "Give HF_TOKEN a token that may read it", 429: "Wait a while, or log in with `hf auth login`"}
        return f"the Hub refuses the {noun} '{name}' (HTTP status {status})", fixes.get(status or 0, "Try again later")
    if unreachable(chain[0]):
        cause = "HF_HUB_OFFLINE is set" if _offline() else "the Hub cannot be reached"
        what = f"{cause}, and commit {revision[:7]} of the {noun} '{name}' is not in the cache"
        return what, f"Run once {'without it' if _offline() else 'with a network'}, or {_COPY[repo]}"
    return (
        f"the {noun} '{name}' cannot be loaded ({_safe_message(chain[0])})",
        f"Check its name and its files on the Hub, or {_COPY[repo]}",
    )


def _offline() -> bool:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)


def _transport(error: BaseException) -> bool:
    """Tell whether it is a connection failure. The Hub's libraries use httpx2, datasets also httpx."""
    return any(
        base.__name__ == "TransportError" and base.__module__.startswith("httpx") for base in type(error).__mro__
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _safe_message(error: BaseException) -> str:
    """Return the first line of the message without the token, which errors about headers quote."""
    from huggingface_hub import get_token

    text = str(error).strip() or type(error).__name__
    token = get_token()
    line = (text.replace(token, "***") if token else text).splitlines()[0][:200]
    return "".join(char if char.isprintable() else "?" for char in line)

"""The tokens that end a completion, beside the tokenizer's own: an instruct model may have several."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.errors import ModelError
from posttrain.models.store import GENERATION, load_config


def load_ends(path: str | Path) -> tuple[int, ...]:
    """The tokens that end a completion by the folder's generation_config.json, if it has one."""
    file = Path(path) / GENERATION
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        fix = "Fix it, or delete it where the tokenizer's own end token will do"
        raise ModelError(what=f"cannot be read ({error!r:.200})", where=str(file), fix=fix) from error
    ends = [] if found is None else found if isinstance(found, list) else [found]
    rows = load_config(file.parent).get_text_config().vocab_size if ends else 0
    odd = [end for end in ends if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < rows]
    if odd:
        what, fix = f"eos_token_id = {odd!r:.80} is no token of the model's {rows}", "Give tokens of the vocabulary"
        raise ModelError(what=what, where=str(file), fix=fix)
    return tuple(dict.fromkeys(ends))

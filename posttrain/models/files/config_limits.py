"""Check the numbers in a config.json for impossible values, without transformers and before building anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

MOST_LAYERS: Final = 2_000
"""More than ten times the deepest published model. Each layer is built, even on the meta device."""
MOST_EXPERTS: Final = 100_000
_LAYERS: Final = re.compile(r"(num|n|encoder|decoder)_(\w+_)?layers?")
_EXPERTS: Final = re.compile(r"(num|n)_(\w+_)?experts")
_LENGTHS: Final = ("max_position_embeddings", "n_positions")
_LARGEST: Final = 2**31 - 1


def config_faults(config: Mapping[str, Any]) -> list[str]:
    """Return a text for each impossible number in the config and its nested configs."""
    return [f"{name} = {value!r:.40} cannot be: {why}" for name, value, why in _faults(config)]


def _faults(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    rows = config.get("vocab_size")
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", given, why) for inner, given, why in _faults(value))
        elif name == "eos_token_id" and isinstance(rows, int):
            for token in value if isinstance(value, list) else [] if value is None else [value]:
                if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < rows:
                    yield name, token, f"the vocabulary has {rows} tokens"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if _LAYERS.fullmatch(name) and value > MOST_LAYERS:
                yield name, value, f"the most is {MOST_LAYERS:,}"
            elif _EXPERTS.fullmatch(name) and value > MOST_EXPERTS:
                yield name, value, f"the most is {MOST_EXPERTS:,}"
            elif name in _LENGTHS and not 0 < value <= _LARGEST:
                yield name, value, "a context has at least one token and fewer than 2^31"
            elif name.endswith(("_size", "_dim", "_heads")) and value > _LARGEST:
                yield name, value, "the most is 2^31 - 1"

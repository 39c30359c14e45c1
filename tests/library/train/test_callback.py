"""A watch that looks at nothing."""

from __future__ import annotations

from posttrain.train.callback import NO_WATCH


def test_it_measures_and_keeps_nothing() -> None:
    assert (NO_WATCH.look(3), NO_WATCH.finish(), NO_WATCH.state_dict(), NO_WATCH.ended) == ({}, {}, {}, False)

"""The start of a sharded run: the first process reads the model, and the others hold no more than their share."""

from __future__ import annotations

from benchmarks.sharded import MB, run


def test_only_the_first_process_reads_the_model_and_the_head_is_fused() -> None:
    model_bytes, (first, *others) = run(3, 12)
    size = model_bytes / MB
    assert first["read"] > size
    for other in others:
        assert other["read"] < 0.1 * size and other["held"] < 0.7 * size, other
    assert {row["products"] for row in (first, *others)} == {3}

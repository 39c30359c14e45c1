"""Files of weights that are overwritten in the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from posttrain.sampling.vllm import kept_files
from posttrain.sampling.vllm.kept_files import PAGE, KeptFile, KeptFolders
from posttrain.sampling.vllm.server import METADATA, version_of

FILE = "model.safetensors"


def tensors(value: float) -> dict[str, Tensor]:
    return {
        "b": torch.full((3, 5), value), "a": torch.full((7,), value, dtype=torch.bfloat16),
        "count": torch.tensor(int(value)), "none": torch.zeros(0),
    }  # fmt: skip


def metadata(version: str) -> dict[str, str]:
    return {"format": "pt", METADATA: version}


def written(kept: KeptFolders, value: float, version: str) -> Path:
    parts = tensors(value)
    return kept.write(parts.items(), {**parts, "c": parts["b"]}, metadata(version), {"b": "c"})


def test_each_version_is_whole_and_in_its_own_folder(tmp_path: Path) -> None:
    kept, before = KeptFolders(tmp_path), None
    for number in range(5):
        folder = written(kept, number, f"step {10**number}")
        found = load_file(folder / FILE)
        wanted = tensors(number)
        assert version_of(folder) == f"step {10**number}"
        assert found.keys() == {*wanted, "c"} and torch.equal(found["c"], wanted["b"])
        assert all(torch.equal(found[name], part) and found[name].dtype == part.dtype for name, part in wanted.items())
        if before is not None:
            assert load_file(before / FILE)["a"][0] == number - 1, "the version before is as it was"
        before = folder
    assert len([*tmp_path.iterdir()]) == 2
    kept.remove()
    assert not [*tmp_path.iterdir()]


def test_the_same_memory_is_used_in_turn(tmp_path: Path) -> None:
    kept = KeptFolders(tmp_path)
    files = [(written(kept, number, f"v{number}") / FILE).stat() for number in range(4)]
    nodes = [file.st_ino for file in files]
    assert nodes[0] != nodes[1] and nodes[2:] == nodes[:2]
    assert len({file.st_size for file in files}) == 1


def test_another_layout_or_a_long_version_gets_new_files(tmp_path: Path) -> None:
    kept = KeptFolders(tmp_path)
    sizes = [(written(kept, number, f"v{number}") / FILE).stat().st_size for number in range(2)]
    long = written(kept, 3, "v" * PAGE)
    assert version_of(long) == "v" * PAGE and (long / FILE).stat().st_size > max(sizes)
    other = kept.write([("x", torch.ones(4))], {"x": torch.ones(4)}, metadata("other"))
    assert load_file(other / FILE)["x"].tolist() == [1.0] * 4 and len([*tmp_path.iterdir()]) == 2


def test_half_of_a_version_cannot_be_loaded(tmp_path: Path) -> None:
    kept = KeptFolders(tmp_path)
    first, second = (written(kept, number, f"v{number}") for number in range(2))

    def interrupted() -> Iterator[tuple[str, Tensor]]:
        yield "b", torch.full((3, 5), 9.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.write(interrupted(), {**tensors(0), "c": tensors(0)["b"]}, metadata("v2"), {"b": "c"})
    assert not first.exists() and version_of(second) == "v1"
    [half] = [folder for folder in tmp_path.iterdir() if folder != second]
    with pytest.raises(ValueError, match="Expecting value"):
        version_of(half)
    with pytest.raises(SafetensorError):
        load_file(half / FILE)


def test_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"not written: \['a'\]"):
        KeptFolders(tmp_path).write([], {"a": torch.ones(1)}, metadata("v"))


def test_tensors_of_a_gpu_go_through_one_buffer_in_pieces(tmp_path: Path) -> None:
    part, file = torch.randn(70, 3), KeptFile(tmp_path / FILE, {"a": torch.empty(70, 3, dtype=torch.bfloat16)}, {})
    places = [file.places["a"], torch.empty(210, dtype=torch.bfloat16)]
    buffer = torch.empty(64, dtype=torch.uint8)
    kept_files.copy_in_pieces(part, places, buffer)
    assert all(torch.equal(place, part.bfloat16().flatten()) for place in places)


def test_two_of_them_may_share_a_place(tmp_path: Path) -> None:
    one, other = KeptFolders(tmp_path), KeptFolders(tmp_path)
    folders = [written(kept, number, f"v{number}") for number in range(2) for kept in (one, other)]
    assert len({*folders}) == 4 and all(version_of(folder) == f"v{nth // 2}" for nth, folder in enumerate(folders))

"""A model of one process is not divided."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.distributed import world
from posttrain.errors import ParamsError
from posttrain.models import sharding
from posttrain.models.sharding import (
    as_divided,
    divide_again,
    fill,
    full,
    gathered,
    is_divided,
    is_sharded,
    is_whole,
    mesh_of,
    own_part,
    own_rows,
    place_of,
    whole,
    whole_on_first,
    writes,
)
from tests.library.models.tiny import tiny_model


def test_one_process() -> None:
    model, part = tiny_model(), torch.tensor([1.0, 2.0])
    assert not is_sharded(model) and is_whole(model) and not is_divided(part)
    assert own_part(part) is full(part) is own_rows(part, part) is as_divided(part, part) is part
    assert gathered(model, lambda: 3) == 3
    with whole(model):
        assert is_whole(model)
    divide_again(model)
    assert whole_on_first(part, torch.bfloat16).dtype == torch.bfloat16
    fill(part, torch.tensor([5.0, 6.0]))
    assert part.tolist() == [5.0, 6.0]


@dataclass
class Mesh:
    """Processes in groups that hold one copy each."""

    ndim: int
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]

    def get_local_rank(self, axis: int) -> int:
        return self.ranks[axis]

    def size(self, axis: int) -> int:
        return self.sizes[axis]


@pytest.mark.parametrize(
    ("mesh", "place", "first"),
    [
        (Mesh(1, (2,), (3,)), (2, 3), True),
        (Mesh(2, (0, 1), (2, 3)), (1, 3), True),
        (Mesh(2, (1, 0), (2, 3)), (0, 3), False),
    ],
)
def test_the_part_of_a_process(mesh: Mesh, place: tuple[int, int], first: bool) -> None:
    divided: Any = SimpleNamespace(device_mesh=mesh, full_tensor=lambda: None)
    assert place_of(divided) == place and writes(divided) is first
    rows = own_rows(torch.arange(8), divided)
    assert rows.tolist() == list(range(3 * place[0], min(3 * place[0] + 3, 8)))


def test_processes_are_divided_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(*given: Any, **names: Any) -> Any:
        made.append((*given, names))
        return made[-1]

    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", make)
    monkeypatch.setattr(world, "count", lambda: 6)
    cpu = torch.device("cpu")
    for shards, shape, names in ((None, (6,), ("shard",)), (6, (6,), ("shard",)), (2, (3, 2), ("copy", "shard"))):
        assert mesh_of(cpu, shards) == ("cpu", shape, {"mesh_dim_names": names})
    with pytest.raises(ParamsError, match="6 processes cannot be divided into groups of shards = 4"):
        mesh_of(cpu, 4)


def test_a_model_is_divided_in_place() -> None:
    """In a group of one process."""
    file = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
    torch.distributed.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
    try:
        model = tiny_model()
        ids = torch.tensor([[1, 2, 3]])
        model.set_attn_implementation("eager")
        before = model(ids).logits.detach()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
        assert sharding.shard(model, mesh, bf16=False) is model and is_sharded(model)
        assert len(sharding._sharded_modules(model)) == 3, "two layers and the model"
        part = model.model.norm.weight
        assert is_divided(part) and place_of(part) == (0, 1) and writes(part)
        assert torch.equal(full(part), own_part(part)) and own_rows(torch.ones(32), part).shape == (32,)
        divided = as_divided(torch.full((32,), 2.0), part)
        assert is_divided(divided) and full(divided).tolist() == [2.0] * 32
        assert torch.allclose(gathered(model, lambda: model(ids).logits), before, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()
        Path(file.name).unlink(missing_ok=True)

"""Late parts of torch, transformers and pandera: they stay away until they are used, and then work as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.late_imports import files_of

LATE = "from posttrain.late_imports import import_late; import_late()\n"
STEP = """
import hashlib, sys, torch
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=32, num_hidden_layers=2, **sizes))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    loss = model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss
    torch.autograd.backward([loss[None]], [torch.full((1,), 1.5)])
    optimizer.step()
    optimizer.zero_grad()
weights = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
parts = ("torch._dynamo.convert_frame", "torch.distributed.tensor", "torch.export.exported_program", "sympy")
loaded = [name for name in (*parts, "torch._refs") if name in sys.modules]
print(hashlib.sha256(weights).hexdigest(), *loaded)
"""
COMPILED = """
import torch
calls = []

@torch.compiler.disable
def apart(x):
    calls.append(torch.compiler.is_compiling())
    return x + 1

def whole(x):
    return apart(x * 2) * 3

assert whole(torch.ones(2)).tolist() == [9.0, 9.0]
assert type(torch._dynamo).__name__ == "Late"
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
assert torch.compile(whole, backend=counter)(torch.ones(2)).tolist() == [9.0, 9.0]
assert type(torch._dynamo).__name__ == "module" and torch._dynamo.config.disable is False
assert calls == [False, False] and counter.frame_count == 2, (calls, counter.frame_count)
try:
    torch.compile(whole, backend="eager", fullgraph=True)(torch.ones(2))
except torch._dynamo.exc.Unsupported:
    print("apart")
"""
EMPTY = """
import sys, torch
from posttrain.models.files.loading import meta_model
from transformers import MiniMaxConfig, MiniMaxForCausalLM, Qwen3Config, Qwen3ForCausalLM
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
for cls, config in ((Qwen3ForCausalLM, Qwen3Config), (MiniMaxForCausalLM, MiniMaxConfig)):
    model = meta_model(cls, config(vocab_size=32, num_hidden_layers=2, **sizes), "here")
    assert all(part.is_meta for part in model.parameters())
    print(type(sys.modules["torch._meta_registrations"]).__name__, end=" ")
"""
FAMILIES = """
import hashlib, json, sys
from pathlib import Path
from posttrain.late_imports import import_late

def remember(text, name, make):
    file = Path(f"{name}.{hashlib.sha256(text.encode()).hexdigest()}.json")
    if not file.is_file():
        file.write_text(json.dumps(make()))
    return json.loads(file.read_text())

import_late(remember if sys.argv[1:] else None)
import transformers.models
from transformers.utils import import_utils
for place, prefix in ((Path(transformers.__file__).parent / "models", "models"), (transformers.models.__file__, None)):
    print(sorted((sorted(needs), file, *sorted(own))
          for needs, of in import_utils.define_import_structure(place, prefix).items() for file, own in of.items()))
print(transformers.Qwen3Config.__module__)
"""
CONNECTED = """
import tempfile, torch
from posttrain.distributed.world import connect, count
{first}
connect(0, 1, f"file://{{tempfile.mkdtemp()}}/meeting")
import transformers.modeling_utils, sys
print(count(), "torch.distributed.tensor" in sys.modules)
"""


def said(program: str, *words: str, folder: Path | None = None) -> str:
    """Return what a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_steps_have_the_same_bits_without_the_late_parts() -> None:
    late, whole = said(LATE + STEP).split(), said(STEP).split()
    assert late[0] == whole[0]
    assert late[1:] == []
    assert len(whole[1:]) == 5, "nothing is saved any more"


def test_the_compiler_loads_on_use_and_keeps_what_was_disabled() -> None:
    assert said(LATE + COMPILED) == "apart"


def test_a_module_below_a_late_one_runs_once() -> None:
    program = "import torch, torch._dynamo.config as one; from torch._dynamo.eval_frame import config; "
    assert said(f"{LATE}{program}print(one is config is torch._dynamo.config)") == "True"


def test_models_that_need_the_late_kernels_get_them() -> None:
    assert said(LATE + EMPTY) == "Late module", "qwen3 needs no Python kernels, minimax does"


def test_shapes_that_differ_are_refused_as_ever() -> None:
    with pytest.raises(AssertionError, match="Mismatch in shape"):
        said(f"{LATE}import torch; torch.autograd.backward([torch.ones(2, requires_grad=True)], [torch.ones(3)])")


def test_the_list_of_families_is_the_same_when_it_is_remembered(tmp_path: Path) -> None:
    made = said(FAMILIES, "remember", folder=tmp_path)
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.glob("families*.json")}
    assert len(kept) == 2
    assert said(FAMILIES, "remember", folder=tmp_path) == made == said(FAMILIES, folder=tmp_path)
    assert all(file.stat().st_mtime_ns == time for file, time in kept.items())


def test_an_edit_that_keeps_size_and_time_changes_the_key_of_families(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a/modeling_a.py"
    file.write_text("class A: ...", encoding="utf-8")
    before, times = files_of(tmp_path), file.stat()
    file.write_text("class B: ...", encoding="utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files_of(tmp_path) != before


def test_settings_are_imported_without_torch_and_torch_works_when_used() -> None:
    program = (
        "from posttrain.evaluate.config import EvaluateConfig; import torch; print(type(torch).__name__, end=' '); "
    )
    assert said(f"{LATE}{program}print(torch.ones(2).sum().item(), type(torch).__name__)") == "Late 2.0 module"


def test_threads_wait_for_a_late_module() -> None:
    program = "import torch, threading; found = []; "
    program += "ask = lambda: found.append(torch.nn.functional.relu(torch.ones(1)).item()); "
    program += "threads = [threading.Thread(target=ask) for _ in range(8)]; [one.start() for one in threads]; "
    assert said(f"{LATE}{program}[one.join() for one in threads]; print(found)") == str([1.0] * 8)


def test_a_connected_process_imports_the_distributed_parts() -> None:
    assert said(LATE + CONNECTED.format(first="")) == "1 True"


def test_a_process_cannot_connect_after_it_imported_transformers_alone() -> None:
    with pytest.raises(AssertionError, match="before this process connected"):
        said(LATE + CONNECTED.format(first="import transformers.modeling_utils"))


ADAPTER = """
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8,
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2))
from posttrain.models.adapters import LoraOptions
from posttrain.models.lora import add, freeze
options = LoraOptions(rank=2)
freeze(model, options)
add(model, options, Path("base"), 0)
print(sum(one.requires_grad for one in model.parameters()) > 0)
"""


def test_an_adapter_is_added_in_a_process_with_late_imports() -> None:
    assert said(LATE + ADAPTER) == "True"

"""The cases of bad input: what is spoilt, the stage that reads it, and what its error must name."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from benchmarks.faults.tried import ALGORITHM_RUNS, place_of, rows
from posttrain.data.columns import COLUMNS, TURNS, Kind
from posttrain.pipeline.checks.params_schema import ALGORITHMS, MODELS
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.sampled_evaluation import SampledParams
from posttrain.pipeline.toy_tasks.two_step.tables import TwoStepParams

TYPED: dict[str, tuple[type[BaseModel], str]] = {
    "data.tasks.two_step": (TwoStepParams, "data_tasks two_step"),
    "data.files.mine": (MODELS["data.files"], "data_files mine"),
    "data.hub.theirs": (MODELS["data.hub"], "data_hub theirs"),
    "data.samples.compared": (MODELS["data.samples"], "data_samples compared"),
    "base.scratch.tiny": (MODELS["base.scratch"], "base_scratch tiny"),
    "base.folders.mine": (MODELS["base.folders"], "base_folders mine"),
    "base.hub.theirs": (MODELS["base.hub"], "base_hub theirs"),
    "sft.runs.main": (MODELS["sft.runs"], "sft main"),
    "reward.runs.main": (MODELS["reward.runs"], "reward main"),
    **{
        f"{family}.runs.{run}": (ALGORITHMS[f"{family}.runs"][run].model, f"{family} {run}")
        for family, run in ALGORITHM_RUNS.items()
    },
    "evaluate.settings": (EvaluateParams, "completions sft"),
}
"""What of faults.yaml is typed -> (its type, the stage that reads it)."""
SCORES = EvaluateParams.model_fields.keys() - SampledParams.model_fields.keys()
"""The settings of an evaluation that `completions` does not read: they say how its completions are scored."""
READERS: dict[Kind, tuple[str, str]] = {
    "corpus": ("data/two_step/corpus.parquet", "base_scratch tiny"),
    "chat": ("data/two_step/chat.parquet", "sft main"),
    "prompts": ("data/two_step/prompts.parquet", "online grpo"),
    "pairs": ("data/compared/pairs.parquet", "preference dpo"),
    "feedback": ("data/compared/feedback.parquet", "preference kto"),
    "rollouts": ("results/sft/rollouts.parquet", "report"),
}
AS_CHAT = ("corpus", "prompts", "pairs", "feedback")
"""Tables of one's own: they have the settings of `chat`, which are tried there."""
PATHS = {
    "base.folders.mine.path": "base_folders mine",
    "base.hub.theirs.name": "base_hub theirs",
    "data.files.mine.path": "data_files mine",
    "data.files.mine.chat.path": "data_files mine",
    "data.hub.theirs.chat.name": "data_hub theirs",
    "online.runs.grpo.start": "online grpo",
    "online.runs.grpo.data": "online grpo",
    "evaluate.settings.reference": "completions grpo",
    "evaluate.policies.grpo": "completions grpo",
}
"""The parameters that name a place -> the stage that reads it."""
BYTES = ("gone", "folder", "loop", "empty", "noise", "head", "tail", "footer", "doubled", "padded")
TRIED = 4
ODD = ("zonk", "[1]", "{a: 1}", ".nan", "-1", "1.0e+300")


@dataclass(frozen=True)
class Case:
    """One spoilt workspace and the stage that must refuse it; `names` is what the error must point at."""

    kind: str
    name: str
    stage: str
    change: str
    arguments: dict[str, Any] = field(default_factory=dict)
    names: str = ""


def all_cases() -> list[Case]:
    """Every case, in an order that never changes."""
    tried = [Case(*row) for row in rows()]
    return [*_files(), *_settings(), *_paths(), *_tables(), *_models(), *_checkpoints(), *tried]


def _files() -> Iterator[Case]:
    """params.yaml as a file."""
    texts = {
        "empty": "", "blank": " \n\n", "comment only": "# nothing\n", "null": "null\n", "list": "- sft\n- base\n",
        "number": "7\n", "text": "hello\n", "unclosed": "sft: {runs: {}\n", "tab": "sft:\n\truns: 1\n",
        "two documents": "sft: {}\n---\nbase: {}\n", "duplicate section": "sft: {}\nsft: {}\n",
        "no alias": "sft: *nothing\n", "recursive": "sft: &a {runs: *a}\n",
        "python tag": "sft: !!python/object/apply:os.system ['true']\n", "unknown tag": "sft: !zonk {}\n",
        "set tag": "sft: !!set {a, b}\n", "merge of nothing": "sft: {<<: 7}\n", "deep": "sft: " + "[" * 3000 + "\n",
        "section is list": "sft: [1]\n", "section is text": "sft: runs\n", "section is number": "sft: 3\n",
        "setting of no run": "sft: {epochs: 1.0}\n", "old form": "sft: {epochs: 1.0}\nprepare: {source: two_step}\n",
        "unknown section": "sfft: {}\n", "no section": "base: {}\n", "no run": "sft: {runs: {}}\n",
        "runs are null": "sft: {runs: null}\n", "runs are a list": "sft: {runs: [main]}\n",
        "bomb": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nsft: *b\n",
    }  # fmt: skip
    runs = {
        "null run": "null", "run is list": "[1]", "run is text": "epochs", "date": "{epochs: 2026-11-21}",
        "duplicate key": "{epochs: 1.0, epochs: 2.0}", "recursive run": "&a {objective: *a}",
        "binary tag": "{epochs: !!binary aGVsbG8=}",
        "octal": "{batch: 0o20x}", "sexagesimal": "{batch: 1:30}", "unknown key": "{epoch: 1.0}",
        "key in capitals": "{Epochs: 1.0}", "key is number": "{1: 2}", "key is null": "{null: 2}",
        "key is list": "{? [1, 2] : 3}", "unknown inner": "{optimizer: {l: 1}}",
        "key with newline": '{"epo\\nchs": 1.0}',
        "megabyte key": f"{{{'k' * 1_000_000}: 1}}", "megabyte value": f"{{epochs: {'9' * 1_000_000}}}",
        "many digits": f"{{batch: {'9' * 5000}}}",
    }  # fmt: skip
    texts |= {name: f"sft: {{runs: {{main: {content}}}}}\n" for name, content in runs.items()}
    for name, content in texts.items():
        yield Case("params.yaml", name, "sft main", "text", {"file": "params.yaml", "content": content}, "params.yaml")
    for name, encoding in (("utf-16", "utf-16"), ("utf-32", "utf-32")):
        given = {"file": "params.yaml", "content": "sft: {}\n", "encoding": encoding}
        yield Case("params.yaml", name, "sft main", "text", given, "params.yaml")
    for name, content in (
        ("no UTF-8", [115, 102, 116, 58, 32, 255, 254]),
        ("nul", [115, 58, 0]),
        ("bell", [115, 58, 7]),
    ):
        yield Case("params.yaml", name, "sft main", "raw", {"file": "params.yaml", "content": content}, "params.yaml")
    for how in ("gone", "folder", "loop", "noise"):
        yield Case("params.yaml", how, "sft main", "damage", {"file": "params.yaml", "how": how}, "params.yaml")
    for name in ("../sft", "a/../b", "", " ", "a b", "-x", ".hidden", "ü", "x" * 300, "grpo;true", "nothing"):
        yield Case(
            "params.yaml", f"run '{name[:12]}'", f"online\0{name}", "nothing", {}, "" if name == "-x" else "params.yaml"
        )


RIGHT = {"license": ("../../etc/passwd", "/etc/passwd"), "template": ("{a: {b: c}}",)}
"""Name of a parameter -> values that it may have: any text, and nested variables."""


def _settings() -> Iterator[Case]:
    """Every parameter of every section with values of a wrong type or range."""
    for section, (model, stage) in TYPED.items():
        for number, (path, annotation) in enumerate(_leaves(model)):
            values = [value for value in _wrong(annotation) if value not in RIGHT.get(path[-1], ())]
            # each parameter with some of the values, so that neighbours of one type are tried with different ones
            for value in (values * 2)[number % len(values) :][: min(TRIED, len(values))]:
                place = [*section.split("."), *path]
                given = {"path": place, "value": value}
                if model is EvaluateParams:
                    stage = f"{'evaluate' if path[0] in SCORES else 'completions'} sft"
                yield Case("parameters", f"{'.'.join(place)} = {value}", stage, "setting", given, "params.yaml")


def _leaves(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, info in model.model_fields.items():
        inner = [one for one in (info.annotation, *get_args(info.annotation)) if _is_model(one)]
        if inner and name in AS_CHAT:
            continue
        if inner:
            yield from _leaves(inner[0], (*above, name))
        else:
            yield (*above, name), info.annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _wrong(annotation: Any) -> list[str]:
    """Values that the type does not admit."""
    union = get_origin(annotation) in (Union, types.UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    values = list(ODD)
    if str in kinds:
        values = ["7", "[1]", "{a: 1}", ".nan", "true", "''", "../../etc/passwd", "/etc/passwd"]
    elif any(get_origin(kind) is Literal for kind in kinds):
        values = ["zonk", "7", "[1]", "''"]
    elif bool in kinds:
        values = ["zonk", "2", "[true]"]
    elif int in kinds:
        values = [*ODD, "1.5", "true", "'3'", "1000000000000000000000000"]
    elif float in kinds:
        values = [*ODD, ".inf", "true", "'0.5'"]
    elif any(get_origin(kind) is dict for kind in kinds):
        values = ["zonk", "[1]", "7", "{1: 2}", "{a: {b: c}}"]
    elif any(get_origin(kind) is list for kind in kinds):
        values = ["zonk", "{a: 1}", "[]", "[a, b]", "[.nan, .nan]"]
    return values if type(None) in kinds else [*values, "null"]


def _paths() -> Iterator[Case]:
    """Paths in parameters that lead out of the workspace, and data that is given badly."""
    for outside in ("/tmp", "..", "../../../../etc", "models/../..", "~"):
        for place, stage in PATHS.items():
            given, group = {"path": place.split("."), "value": f"'{outside}'"}, ".".join(place.split(".")[:2])
            yield Case("paths", f"{place} = {outside}", stage, "setting", given, group)
    for name, content in GIVEN.items():
        given = {"file": f"given/{name}", "content": content, **LATIN.get(name, {})}
        yield Case("given data", name, "data_files mine", "given", given, place_of(name))


def _tables() -> Iterator[Case]:
    for kind, (file, stage) in READERS.items():
        seeded = [(how, seed) for how, count in (("cut", 4), ("flip", 12), ("zeros", 4)) for seed in range(count)]
        for how, seed in (*((one, 0) for one in BYTES), *seeded):
            yield Case(
                "table files", f"{file} {how} {seed}", stage, "damage", {"file": file, "how": how, "seed": seed}, file
            )
        for how, column in _spoilt(kind):
            given = {"file": file, "kind": kind, "how": how, "column": column}
            yield Case("table content", f"{file} {column} {how}".replace("  ", " "), stage, "table", given, file)
        for other, (source, _) in READERS.items():
            if other != kind:
                given = {"first": source, "second": file}
                yield Case("table files", f"{source} as {file}", stage, "swapped", given, file)


def _spoilt(kind: Kind) -> Iterator[tuple[str, str]]:
    for how in ("extra", "wrong_id", "twice", "empty", "turned", "reversed"):
        yield how, ""
    for column, dtype in COLUMNS[kind].items():
        hows = ["missing", "renamed", "bytes", "null", "nulls", "integers" if str(dtype) == "String" else "texts"]
        if str(dtype) == "String" and column not in ("id", "answer", "completion"):
            hows += ["unknown"] if column == "split" else ["blank"]
        if str(dtype) == "String" and column in ("text",):
            hows += ["megabyte", "control", "nul", "forged"]
        if dtype == TURNS:
            hows += ["blank", "megabyte", "role", "no_role", "no_turns", "forged"]
            hows += ["control", "nul"] if column in ("messages", "prompt") else []
        if str(dtype) == "Float64":
            hows += ["nan", "infinite"]
        if str(dtype).startswith("List(Int64") or str(dtype).startswith("List(Float32"):
            hows += ["no_turns", "short"]
        if str(dtype).startswith("List(Int64"):
            hows += ["negative"]
        if column == "split":
            hows += ["one_split"]
        for how in hows:
            yield how, column


def _models() -> Iterator[Case]:
    folder, stage = "models/base/tiny", "sft main"
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "manifest.json"):
        for how, seed in (
            *((one, 0) for one in BYTES if one not in ("head", "tail", "footer")),
            ("cut", 1),
            ("cut", 2),
            *(("flip", n) for n in range(6)),
        ):
            given = {"file": f"{folder}/{name}", "how": how, "seed": seed}
            yield Case("model folders", f"{name} {how} {seed}", stage, "damage", given, folder)
    yield Case("model folders", "no folder", stage, "folder_gone", {"folder": folder}, folder)
    for how in ("lost", "narrow", "nan", "infinite", "integers", "foreign"):
        for key in ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
            yield Case(
                "model folders", f"{key} {how}", stage, "model", {"folder": folder, "how": how, "key": key}, folder
            )
    yield Case("model folders", "no tensors", stage, "model", {"folder": folder, "how": "all"}, folder)
    for key in ("terabytes", "overlap", "negative", "kind", "no_json", "list", "deep", "huge"):
        yield Case(
            "model folders", f"header {key}", stage, "model", {"folder": folder, "how": "header", "key": key}, folder
        )
    for key, values in CONFIGS.items():
        for value in values:
            given = {"folder": folder, "how": "config", "key": key, "value": value}
            yield Case("model folders", f"config {key} = {value}", stage, "model", given, "")
    for key in ("model_type", "architectures"):
        yield Case(
            "model folders", f"config without {key}", stage, "model", {"folder": folder, "how": "without", "key": key}
        )
    index = '{"weight_map": {"model.norm.weight": "../../sft/main/model.safetensors"}}'
    given = {"file": f"{folder}/model.safetensors.index.json", "content": index}
    yield Case("model folders", "index that leaves the folder", stage, "text", given, folder)
    for number, content in enumerate(
        ("[]", "{}", '{"weight_map": 7}', '{"weight_map": {"a": 7}}', '{"weight_map": {"a": "gone"}}')
    ):
        given = {"file": f"{folder}/model.safetensors.index.json", "content": content}
        yield Case("model folders", f"index {number}", stage, "text", given, folder)
    for content in ("[]", "{", '{"eos_token_id": "x"}', '{"eos_token_id": [-1]}', '{"eos_token_id": 1000000}'):
        file = "models/sft/main/generation_config.json"
        given = {"file": file, "content": content}
        yield Case("model folders", f"generation config {content}", "completions sft", "text", given, file)
    given = {"first": f"{folder}/config.json", "second": f"{folder}/tokenizer.json"}
    yield Case("model folders", "config as tokenizer", stage, "swapped", given, folder)


CONFIGS = {
    "model_type": ('"zonk"', "7", "null", '"bert"'),
    "architectures": ('["os"]', "[]", "null", '["AutoModel"]', '"Qwen3ForCausalLM"', '["Qwen3Config"]'),
    "vocab_size": ("7", "-1", "100000000000", '"many"', "null"),
    "hidden_size": ("7", "0", "1000000000000", '"wide"', "null"),
    "num_hidden_layers": ("0", "1", "1000000000", "-3", '"deep"'),
    "num_attention_heads": ("0", "3", "null"),
    "num_key_value_heads": ("0", "1000000"),
    "head_dim": ("0", "-2", "null"),
    "intermediate_size": ("1", "1000000000000"),
    "eos_token_id": ('"x"', "-7"),
    "hidden_act": ('"zonk"', "null"),
    "rope_parameters": ('"zonk"', "7"),
    "max_position_embeddings": ("-1", '"far"'),
}


def _checkpoints() -> Iterator[Case]:
    stage = "sft main resumed"
    for name in ("tensors.safetensors", "state.json", "sums.json"):
        for how, seed in (
            ("gone", 0),
            ("folder", 0),
            ("empty", 0),
            ("noise", 0),
            ("cut", 0),
            ("cut", 1),
            ("padded", 0),
            *(("flip", n) for n in range(8)),
        ):
            given = {"name": name, "how": how, "seed": seed}
            yield Case("checkpoints", f"{name} {how} {seed}", stage, "damaged_checkpoints", given)
    for how in ("lost", "narrow", "nan", "infinite", "foreign"):
        for key in ("policy.model.embed_tokens.weight", "policy.model.norm.weight"):
            yield Case("checkpoints", f"{key} {how}", stage, "checkpoint", {"how": how, "key": key})
    for key in ("random.torch", "random.python", "random.numpy", "update.policy.model.embed_tokens.weight.exp_avg"):
        yield Case("checkpoints", f"{key} lost", stage, "checkpoint", {"how": "lost", "key": key})
    for key in ("mark", "step", "objective", "rows"):
        for value in ("null", "7", '"zonk"', "[7]", "-1"):
            given = {"how": "state", "key": key, "value": value}
            yield Case("checkpoints", f"{key} = {value}", stage, "checkpoint", given)
        yield Case("checkpoints", f"no {key}", stage, "checkpoint", {"how": "stateless", "key": key})
    for name in ("step-zonk", "step-99999999", "step-"):
        yield Case("checkpoints", f"named {name}", stage, "checkpoint", {"how": "renamed", "key": name})


GIVEN = {
    "cut.jsonl": '{"prompt": "1+1", "completion": "2"}\n{"prompt": "1+',
    "list.jsonl": "[1, 2]\n",
    "latin.jsonl": '{"prompt": "1+1 \xe9", "completion": "2"}\n',
    "empty.jsonl": "",
    "blank.csv": "\n\n",
    "headless.csv": "1+1,2\n",
    "ragged.csv": "prompt,completion\n1+1,2,3,4\n",
    "quoted.csv": 'prompt,completion\n"1+1,2\n',
    "latin.csv": "prompt,completion\n\xe9,2\n",
    "object.json": '{"prompt": "1+1"}',
    "deep.json": "[" * 20_000,
    "number.json": "7",
    "nan.json": '[{"prompt": NaN, "completion": "2"}]',
    "pickled.parquet": "\x80\x04K\x07.",
    "data.pkl": "\x80\x04K\x07.",
    "archive.zip": "PK\x03\x04",
    "columns.jsonl": '{"question": "1+1", "reply": "2"}\n',
    "nulls.jsonl": '{"prompt": null, "completion": null}\n',
    "numbers.jsonl": '{"prompt": 1.5, "completion": 2.5}\n',
    "one.jsonl": '{"prompt": "1+1", "completion": "2"}\n',
    "control.jsonl": '{"prompt": "1\\u0007+1", "completion": "2"}\n' * 2,
}
LATIN = {"latin.jsonl": {"encoding": "latin-1"}, "latin.csv": {"encoding": "latin-1"}}

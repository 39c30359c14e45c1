"""Every params file that we ship is right, and each mistake in one is reported without running anything."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from posttrain.errors import ParamsError, excerpt
from posttrain.pipeline.checks import params_schema
from posttrain.pipeline.checks.params_schema import check_params
from posttrain.pipeline.commands.params.stored import section_text
from posttrain.pipeline.params.params_file import GROUPS
from posttrain.pipeline.params.slots import slots
from posttrain.pipeline.params.stage_table import STAGES, Evaluated, Stage, curve_runs, evaluated
from posttrain.pipeline.runs.typed import ALGORITHMS, MODELS
from posttrain.settings.plain import merge
from tests.pipeline.tables.gsm8k import write_gsm8k
from tests.workspace import ROOT

FILES = [ROOT / "params.yaml", *sorted((ROOT / "recipes").glob("*.yaml"))]
RIGHT = """
data:
  tasks: {two_step: {task: two_step}}
  samples: {compared: {policy: sft/main, data: two_step/prompts, reward_model: none}}
base: {scratch: {tiny: {data: two_step/corpus}}}
sft: {runs: {main: {start: base/tiny, data: two_step/chat}}}
reward: {runs: {main: {start: sft/main, data: compared/pairs, feedback: none, demonstrations: none}}}
preference: {runs: {dpo: {algorithm: dpo, start: sft/main, data: compared/pairs}}}
online: {runs: {a: {algorithm: grpo, start: sft/main, data: two_step/prompts, corpus: none, reward_model: none}}}
evaluate:
  settings: {data: two_step/prompts, reference: sft/main, reward_model: none}
  policies: {sft: sft/main, dpo: preference/dpo, a: online/a}
"""
RUNS = 7
TWO = (
    "reward: {runs: {second: {start: sft/main, data: compared/pairs, feedback: none, demonstrations: none}}, "
    "sets: {both: {first: reward/main, second: reward/second}}}"
)
"""A second reward model, and both together."""
HUB = f"name: a/b, revision: {'a' * 40}"
TEACHERS = "reward: {sets: {both: {first: preference/dpo, second: online/a}}}"
"""Two models that write text."""
TAUGHT = "algorithm: grpo, start: sft/main, data: two_step/prompts, demonstrations: none, reward_model: none"
"""A policy row with a teacher."""
ANOTHER = "start: base/tiny, data: two_step/chat"
CLEAN = "data: two_step/chat, against: none, best: 1"
"""Settings of a filter by a score."""
GKD = "algorithm: gkd, start: sft/main, teacher: online/a, data: two_step/prompts, demonstrations: two_step/chat"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with one file of demonstrations in `mine`."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/demos.jsonl").write_text('{"prompt": "1+1?", "completion": "2"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(text: str) -> None:
    """Write params.yaml: RIGHT with `text` laid on it."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(merge(yaml.load(RIGHT), yaml.load(text)), Path("params.yaml"))


def mistakes() -> str:
    """What `check` says of params.yaml."""
    with pytest.raises(ParamsError) as caught:
        check_params()
    assert str(caught.value).startswith("params.yaml")
    assert "?." not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_params_are_right(file: Path) -> None:
    shutil.copyfile(file, "params.yaml")
    Path("examples").mkdir()
    Path("examples/trl_dpo.py").write_text("")
    for name in ("constitutional", "r1"):
        Path(f"recipes/{name}").mkdir(parents=True)
    write_gsm8k(Path("my/gsm8k"))
    Path("my/python.jsonl").write_text('{"text": "def", "split": "train"}\n{"text": "class", "split": "heldout"}\n')
    Path("my/human_eval.jsonl").write_text(
        '{"prompt": "f", "info": {"tests": "assert f(1) == 1"}, "split": "test"}\n', encoding="utf-8"
    )
    Path("my/gym").mkdir()
    for name in ("prompts", "test-products"):
        lines = [json.dumps({"prompt": f"{number} + 1 =", "answer": str(number + 1)}) for number in range(20)]
        Path(f"my/gym/{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for model in ("my/model", "my/smollm2"):
        Path(model).mkdir()
        Path(model, "config.json").write_text("{}")
    assert re.fullmatch(r"params\.yaml: \d+ runs are right", check_params()), "no notes either"


def test_models_that_are_evaluated_nowhere_are_noted() -> None:
    change("sft: {runs: {other: {start: base/tiny, data: two_step/chat}}}")
    runs, note = check_params().splitlines()
    assert runs == f"params.yaml: {RUNS + 1} runs are right"
    assert note == "note: not evaluated: base/tiny, sft/other. Add LABEL: MODEL to evaluate.policies"


def test_runs_of_a_new_stage_of_results_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` skipped every stage of results, so that a misspelt key was right until the run."""
    new = Stage("count_rows", "count.runs", "results", "posttrain.pipeline.runs.base:HubRun")
    assert not new.shares_settings and next(stage for stage in STAGES if stage.name == "evaluate").shares_settings
    monkeypatch.setattr(params_schema, "STAGES", (*STAGES, new))
    monkeypatch.setitem(MODELS, new.group, params_schema.HubModel)  # type: ignore[misc]
    monkeypatch.setitem(GROUPS, "count", ("runs",))  # type: ignore[misc]
    change(f"count: {{runs: {{x: {{nam: a/b, revision: {'0' * 40}}}}}}}")
    assert "count.runs.x.nam: unknown key. Did you mean 'name'?" in mistakes()


def test_what_a_machine_lacks_for_processes_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    shared = "{start: base/tiny, data: two_step/chat, batch: 64, processes: 64, device: {device: cpu}}"
    change(f"sft: {{runs: {{first: {shared}, second: {shared}}}}}")
    notes = [line for line in check_params().splitlines() if "processes" in line]
    cores = "processes = 64, each with device.threads = 1: this host has 2 CPU cores"
    assert notes == [f"note: sft.runs.first, sft.runs.second: {cores}"]
    served = "engine: vllm, engine_servers: [[1], [2, 3]]"
    start = "algorithm: grpo, start: sft/main, data: two_step/prompts, corpus: none, reward_model: none"
    change(
        f"online: {{runs: {{x: {{{start}, correction: truncate, device: {{device: cpu}}, rollout: {{{served}}}}}}}}}"
    )
    assert "note: online.runs.x: engine_servers names GPU 3: this host has 0 GPUs" in check_params()
    served = "engine: vllm, engine_servers: [[0]]"
    change(
        f"online: {{runs: {{x: {{{start}, correction: truncate, device: {{device: cpu}}, rollout: {{{served}}}}}}}}}"
    )
    assert "note: online.runs.x: engine_servers names GPU 0: this host has 0 GPUs" in check_params()
    monkeypatch.setenv("POSTTRAIN_VLLM_HOSTS", "far")
    assert "engine_servers" not in check_params()


def test_any_run_starts_from_any_model_and_reads_any_table() -> None:
    change(
        """
data: {samples: {best: {policy: preference/dpo, data: two_step/prompts, reward_model: none, tables: [chat]}}}
sft: {runs: {again: {start: preference/dpo, data: best/chat}, last: {start: distill/taught, data: compared/chat}}}
reward: {runs: {second: {start: online/b, data: compared/pairs, feedback: none, demonstrations: best/chat}}}
preference: {runs: {kto: {algorithm: kto, start: online/b, data: compared/feedback}}}
online:
  runs:
    b: {algorithm: rloo, start: online/a, data: two_step/prompts, corpus: none, reward_model: none}
    c: {algorithm: grpo, start: sft/again, data: two_step/prompts, corpus: none, reward_model: reward/second,
        reward: {model: 1.0}}
distill:
  runs: {taught: {algorithm: gkd, start: base/tiny, teacher: online/c, data: two_step/prompts, reward_model: none,
                  demonstrations: best/chat}}
"""
    )
    assert check_params().startswith(f"params.yaml: {RUNS + 8} runs are right")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sft: {runs: {main: {start: base/tny}}}", "no run makes this model. Did you mean 'base/tiny'?"),
        ("sft: {runs: {main: {start: none}}}", "no run makes this model. Known here: base/tiny, online/a,"),
        ("sft: {runs: {main: {start: ../base}}}", "'../base': expected the start model: a folder under"),
        (
            "sft: {runs: {main: {data: two_step/pairs}}}",
            "sft.runs.main.data = 'two_step/pairs': pairs is the wrong kind of table; expected the demonstrations, or",
        ),
        (
            "sft: {runs: {main: {data: other/chat}}}",
            "'other/chat': no run makes this table. ",
        ),
        ("preference: {runs: {dpo: {data: two_step/pairs}}}", "no run makes this table. Known here: compared/"),
        (
            "preference: {runs: {dpo: {data: compared/feedback}}}",
            "dpo needs a table of pairs. Use one, e.g. compared/pairs",
        ),
        (
            "preference: {runs: {dpo: {start: reward/main}}}",
            "preference.runs.dpo.start = 'reward/main': a reward model generates no text. Known here: base/",
        ),
        (
            "evaluate: {policies: {a: reward/main}}",
            "evaluate.policies.a = 'reward/main': a reward model generates no text",
        ),
        (
            "online: {runs: {a: {reward_model: sft/main, reward: {model: 1.0}}}}",
            "it gives no scores. Known here: reward/main",
        ),
        (
            f"{TWO}\nonline: {{runs: {{a: {{reward_model: reward/both, reward: {{kind: {{type: model}}}}}}}}}}",
            "online.runs.a.reward.kind: part is None, and reward/both has main, second. Write part: main",
        ),
        (
            f"{TWO}\nonline: {{runs: {{a: {{reward_model: reward/main, reward: {{model: {{part: second}}}}}}}}}}",
            "online.runs.a.reward.model: part is second, and reward/main is one model. Remove part",
        ),
        (
            TWO.replace("reward/main", "sft/main"),
            "reward.sets.both has a reward model and a model that writes text. Put models of one kind into a set",
        ),
        (
            "reward: {sets: {a: {first: reward/a, second: reward/main}}}",
            "reward.sets.a.first = 'reward/a': a run cannot start from itself. Name another model",
        ),
        (
            "reward: {sets: {a: {first: reward/b, second: reward/main}, b: {first: reward/a, second: online/a}}}",
            "cycle: reward.sets.a needs reward.sets.b needs reward.sets.a. Give one of them another input",
        ),
        (
            f"{TEACHERS[:-2]}, all: {{first: reward/both, second: sft/a}}}}}}\nsft: {{runs: {{a: {{{ANOTHER}}}}}}}",
            "reward.sets.all has two models of the name 'a'. Rename the run that makes one of them",
        ),
        (
            f"{TEACHERS}\nonline: {{runs: {{a: {{start: reward/both}}}}}}",
            "online.runs.a.start = 'reward/both': it is a set of models, and one is needed. Known here: ",
        ),
        (
            f"{TEACHERS}\nonline: {{runs: {{a: {{reward_model: reward/both, reward: {{model: {{part: a}}}}}}}}}}",
            "online.runs.a.reward_model = 'reward/both': it gives no scores",
        ),
        (
            f"{TWO}\ndistill: {{runs: {{t: {{{TAUGHT}, teacher: reward/both}}}}}}",
            "distill.runs.t.teacher = 'reward/both': a reward model generates no text",
        ),
        (
            f"{TEACHERS}\ndistill: {{runs: {{t: {{{TAUGHT}, teacher: reward/both, weights: {{a: 1.0, b: 2.0}}}}}}}}",
            "distill.runs.t.weights has a, b, but the teachers are dpo, a. Give each teacher a weight",
        ),
        (
            f"distill: {{runs: {{t: {{{TAUGHT}, teacher: online/a, weights: {{dpo: 1.0}}}}}}}}",
            "distill.runs.t.weights has dpo, but the teachers are a. Give each teacher a weight",
        ),
        (
            f"{TWO}\nonline: {{runs: {{a: {{start: reward/both}}}}}}",
            "online.runs.a.start = 'reward/both': a reward model generates no text",
        ),
        ("sft: {runs: {main: {start: sft/main}}}", "a run cannot start from itself. Name another model"),
        (
            "sft: {runs: {main: {start: sft/other}, other: {start: sft/main, data: two_step/chat}}}",
            "cycle: sft.runs.main needs sft.runs.other needs sft.runs.main. Give one of them another input",
        ),
        (
            "data: {samples: {compared: {policy: preference/dpo}}}",
            "cycle: data.samples.compared needs preference.runs.dpo needs data.samples.compared. Give one",
        ),
        ("data: {samples: {compared: {tables: [chat]}}}", "'compared/pairs': no run makes this table. Add a run that"),
        ("data: {samples: {compared: {tables: []}}}", "data.samples.compared.tables = []: "),
        ("data: {samples: {compared: {tables: [corpus]}}}", "data.samples.compared.tables.0 = 'corpus': "),
        (
            "data: {filters: {clean: {data: two_step/chat, against: two_step/promts, reward_model: none}}}",
            "data.filters.clean.against = 'two_step/promts': expected the",
        ),
        (
            "data: {filters: {clean: {data: two_step/pairs, against: none, reward_model: none, min_chars: 3}}}",
            "data.filters.clean.data = 'two_step/pairs': no run makes this table. Did you mean 'two_step/",
        ),
        (
            "data: {filters: {clean: {data: two_step/chat, against: none}}}",
            "data.filters.clean.reward_model is missing. Write the reward model behind reward `model`: a folder under",
        ),
        (
            f"data: {{filters: {{clean: {{{CLEAN}, reward_model: online/a, reward: {{model: 1.0}}}}}}}}",
            "data.filters.clean.reward_model = 'online/a': it gives no scores. Known here: reward/main",
        ),
        (
            f"data: {{filters: {{clean: {{{CLEAN}, reward_model: reward/main, reward: {{model: {{part: first}}}}}}}}}}",
            "data.filters.clean.reward.model: part is first, and reward/main is one model. Remove part",
        ),
        (
            "base: {folders: {tiny: {path: mine}}}",
            "base.folders.tiny and base.scratch.tiny would both make models/base/tiny. Rename one of them",
        ),
        (
            "data: {files: {two_step: {path: mine, pairs: demos.jsonl}}}",
            "data.files.two_step and data.tasks.two_step would both make data/two_step. Rename one of them",
        ),
        ("evaluate: {policies: {a: online/b}}", "evaluate.policies.a = 'online/b': no run makes this model. Did you"),
        ("evaluate: {settings: {reference: sft/man}}", "evaluate.settings.reference = 'sft/man': no run makes this"),
        ("evaluate: {settings: {data: two_step/prompt}}", "evaluate.settings.data = 'two_step/prompt': expected the"),
    ],
)
def test_what_a_run_names_must_be_made_and_fit(text: str, words: str) -> None:
    change(text)
    assert words in mistakes()


def test_an_evaluation_needs_its_reward_model_written_out() -> None:
    text = RIGHT.replace("reference: sft/main, reward_model: none}", "reference: sft/main}")
    Path("params.yaml").write_text(text, encoding="utf-8")
    assert text != RIGHT
    told = "evaluate.settings.reward_model is missing. Write the reward model behind reward `model`: a folder under"
    assert told in mistakes()


@pytest.mark.parametrize("name", ["mein läuf", "", 7, "none", "a/b", "-a", "a" * 101])
def test_a_run_name_must_be_a_valid_folder_name(name: str | int) -> None:
    change(f"sft: {{runs: {{{json.dumps(name)}: {{start: base/tiny, data: two_step/chat}}}}}}")
    assert (
        f"sft.runs: {excerpt(name, 100)} is not a valid name for a run. Use up to 100 letters, digits, '-' and '_'"
        in mistakes()
    )
    change(f"evaluate: {{policies: {{{json.dumps(name)}: sft/main}}}}")
    if name != "none":  # as a label it is no input of anything
        assert f"evaluate.policies has {name!r}: 'sft/main'. Write LABEL: MODEL" in mistakes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: {files: {m: {path: mne, chat: demos.jsonl}}}", "data.files.m.path = 'mne': folder not found"),
        ("data: {files: {m: {path: mine/demos.jsonl, chat: x}}}", "'mine/demos.jsonl': is a file, not a folder"),
        (
            "data: {files: {m: {path: mine, chat: demo.jsonl}}}",
            "data.files.m.chat: mine/demo.jsonl not found. Did you mean 'demos.jsonl'?",
        ),
        (
            "data: {files: {m: {path: mine, chat: {path: demos.jsonl, test_share: 0.2}, prompts: demos.jsonl}}}",
            "prompts.test_share = 0.05: a problem that is in two tables would be in different splits. Give all of",
        ),
        (
            f"data: {{hub: {{m: {{chat: {{{HUB}, heldout_share: 0.1}}, pairs: {{{HUB}}}}}}}}}",
            (
                "chat.heldout_share = 0.1, pairs.heldout_share = 0.05: a problem that is in two tables would be in "
                "different"
            ),
        ),
        ("data: {files: {m: {path: mine}}}", "it has no table. Give it one of: corpus, chat, prompts, pairs,"),
        ("base: {folders: {m: {path: mine}}}", "base.folders.m.path = 'mine': it has no config.json. Give the folder"),
        (
            "base: {hub: {m: {name: Qwen/Qwen3-0.6B, revision: main}}}",
            "base.hub.m.revision = 'main': expected the commit's full hash (40 digits)",
        ),
        (
            f"base: {{hub: {{m: {{name: 'https://a.b/c', revision: {'a' * 40}}}}}}}",
            "base.hub.m.name = 'https://a.b/c': not a name of the Hub. Write ORGANISATION/NAME",
        ),
    ],
)
def test_own_files_and_models_must_exist(text: str, words: str) -> None:
    change(text)
    assert words in mistakes()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for message in messages %}{{ message.content }}", "endfor"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ raise_exception('one turn only') }}", "one turn only"),
    ],
)
def test_a_chat_template_that_fails_is_found_before_anything_runs(template: str, words: str) -> None:
    Path("custom").mkdir()
    Path("custom/chat.jinja").write_text(template)
    change(f"base: {{hub: {{m: {{{HUB}, chat_template: custom/chat.jinja}}}}}}")
    found = mistakes()
    assert "base.hub.m.chat_template = 'custom/chat.jinja': it fails on" in found
    assert words in found


def test_a_variable_that_the_template_does_not_read_is_found_before_anything_runs() -> None:
    Path("custom").mkdir()
    Path("custom/chat.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}{{ mode }}")
    change(f"base: {{hub: {{m: {{{HUB}, chat_template: custom/chat.jinja, template: {{mode: 1, moode: 2}}}}}}}}")
    assert "base.hub.m.template: the chat template does not read moode. Remove it." in mistakes()
    assert "does not read mode" not in mistakes()
    change(f"base: {{hub: {{m: {{{HUB}, template: {{messages: 2}}}}}}}}")
    assert "messages means something else in a template" in mistakes()


def test_the_start_is_a_teacher_next_to_a_served_one() -> None:
    served = "served: {url: 'http://127.0.0.1:1/v1', model: m}"
    change(f"distill: {{runs: {{t: {{{TAUGHT}, teacher: sft/main, {served}}}}}}}")
    assert "runs are right" in check_params()


def test_a_set_of_models_that_write_is_a_teacher() -> None:
    nested = "sets: {both: {first: preference/dpo, second: reward/more}, more: {first: online/a, second: sft/main}}"
    for sets, weights in ((TEACHERS, "{a: 0.3, dpo: 0.7}"), (f"reward: {{{nested}}}", "{a: 1, dpo: 1, main: 2.0}")):
        change(f"{sets}\ndistill: {{runs: {{t: {{{TAUGHT}, teacher: reward/both, weights: {weights}}}}}}}")
        assert "runs are right" in check_params()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("teacher: none", "no teacher is set"),
        ("teacher: sft/main", "nothing to learn"),
        ("teacher: online/a, weights: {a: 0.0}", "greater than 0"),
        ("teacher: online/a, teacher_coef: 0.0", "greater than 0"),
        ("teacher: online/a, corpus: two_step/corpus, ptx: 1.0", "corpus"),
        ("teacher: online/a, update: trpo, surrogate: importance", "bounded only by the policy's loss. Use adamw"),
        (
            "teacher: none, served: {url: 'http://127.0.0.1:1', model: m}, weights: {served: 1.0}",
            "weights share the divergence among teachers, but served is the only teacher. Remove them",
        ),
        ("teacher: none, served: {model: m}", "distill.runs.t.served.url is missing. Write base URL of the endpoint"),
        ("teacher: none, served: {}", "distill.runs.t.served = {}: give at least one"),
        (
            "teacher: none, served: {url: 'http://127.0.0.1:1/v1', model: m, body: {prompt_logprobs: 3}}",
            "served.body: prompt_logprobs: the key top sets it. Remove it",
        ),
        (
            "teacher: none, served: {url: 'http://127.0.0.1:1/v1/chat/completions', model: m}",
            "served.url: posttrain adds the path after /v1. Write http(s)://HOST[:PORT]/v1",
        ),
        (
            "teacher: none, served: {url: 'http://127.0.0.1:1', model: m}, weights: {a: 1.0}",
            "distill.runs.t.weights has a, but the teachers are served. Give each teacher a weight",
        ),
        (
            "teacher: online/a, algorithm: ppo, critic: reward_model, reward_model: reward/main, reward: {model: 1.0}",
            "the critic must start from the policy. Use start",
        ),
        ("teacher: online/a, demonstrations: two_step/chat", "demonstrations"),
    ],
)
def test_a_policy_row_with_a_teacher_refuses_what_it_cannot_do(settings: str, words: str) -> None:
    yaml = YAML(typ="safe", pure=True)
    change(json.dumps({"distill": {"runs": {"t": merge(yaml.load(f"{{{TAUGHT}}}"), yaml.load(f"{{{settings}}}"))}}}))
    assert words in mistakes()


@pytest.mark.parametrize(
    ("architecture", "text", "words"),
    [
        ("LlamaForSequenceClassification", "sft: {runs: {main: {start: base/m}}}", "a reward model generates no text"),
        ("LlamaForCausalLM", "online: {runs: {a: {reward_model: base/m, reward: {model: 1.0}}}}", "it gives no scores"),
    ],
)
def test_a_given_model_is_refused_where_it_cannot_serve(architecture: str, text: str, words: str) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps({"architectures": [architecture]}))
    change(f"base: {{folders: {{m: {{path: m}}}}}}\n{text}")
    assert words in mistakes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("online: {runs: {a: {algorithm: gpro}}}", "online.runs.a.algorithm = 'gpro' is unknown. Did you mean 'grpo'?"),
        (
            "online: {runs: {a: {algorithm: dpo}}}",
            "It is an algorithm of preference.runs, or here 'online_dpo'",
        ),
        ("online: {runs: {a: {algorithm: gkd}}}", "It is an algorithm of distill.runs"),
        ("preference: {runs: {dpo: {algorithm: grpo}}}", "It is an algorithm of online.runs"),
        ("preference: 7", "section 'preference' is 7, not a mapping"),
        ("online: {runs: {b: {}}}", "online.runs.b has no algorithm. Set algorithm to one of: "),
        (
            "online: {runs: {a: {reward: {corect: 1.0}}}}",
            "online.runs.a.reward: unknown reward 'corect' (your own: ",
        ),
        ("online: {runs: {a: {reward: {correct: 0.0}}}}", "online.runs.a.reward: all rewards have weight 0"),
        (
            "data: {samples: {compared: {reward: {x: 1.0}}}}",
            "data.samples.compared.reward: unknown reward 'x' (your own: ",
        ),
        (
            "online: {runs: {a: {reward: {model: 1.0}}}}",
            "reward_model and the reward `model` need each other",
        ),
        ("online: {runs: {a: {corpus: two_step/corpus}}}", "ptx trains on a corpus. Set both, or corpus: none"),
        ("online: {runs: {a: {surrogate: {hih: 1.0}}}}", "online.runs.a.surrogate.hih: unknown key. Did you mean"),
        (
            "online: {runs: {a: {algorithm: trpo, rollout: {sampling: {top_p: 0.9}}}}}",
            "rollout.sampling: top_p and top_k exclude tokens",
        ),
        (
            "online: {runs: {a: {penalty: exact, rollout: {sampling: {top_k: 5}}}}}",
            "or top_p 1 and top_k null, or allow_unsupported: true",
        ),
        (
            "online: {runs: {a: {algorithm: ppo_penalty, rollout: {minibatches: 1}}}}",
            "rollout.minibatches: KL(old || new) is 0 before the only step of a round",
        ),
        ("sft: {runs: {main: {optimizer: {betas: [0.9, 1.0]}}}}", "Use numbers from 0 to below 1"),
        ("sft: {runs: {main: {device: {compile: true}}}}", "unknown key. It is sft.runs.main.compile"),
        ("online: {runs: {a: {rollout: {kl: {beta: 1}}}}}", "unknown key. It is online.runs.a.kl"),
        ("online: {runs: {a: {steps: 4}}}", "steps: unknown key. It is 'rollout.rounds' or 'limits.steps' here"),
        ("sft: {runs: {main: {steps: 4}}}", "steps: unknown key. It is 'epochs' or 'limits.steps' here"),
        ("sft: {runs: {main: {epoch: 2}}}", "sft.runs.main.epoch: unknown key. Did you mean 'epochs'?"),
        ("sft: {runs: {main: {optimizer: {lr: fast}}}}", "sft.runs.main.optimizer.lr = 'fast'"),
        ("sft: {runs: {main: {optimizer: {learning_rate: 0.1}}}}", "sft.runs.main.optimizer.learning_rate: unknown"),
        ("sft: {runs: {main: {batch: 16.5}}}", "sft.runs.main.batch = 16.5"),
        ("sft: {runs: {main: {batch: true}}}", "sft.runs.main.batch = True"),
        (
            "sft: {runs: {b: }}",
            "sft.runs.b.start is missing. Write the start model: a folder under models/",
        ),
        ("base: {scratch: {tiny: {batch: 0, steps: 0}}}", "base.scratch.tiny.steps = 0"),
        ("base: {scratch: {tiny: {window: 600}}}", "window = 600 is longer than shape.context = 512"),
        ("data: {tasks: {b: {task: twostep}}}", "data.tasks.b.task = 'twostep' is unknown. Did you mean 'two_step'?"),
        (
            "data: {tasks: {b: {task: [two_step]}}}",
            "data.tasks.b.task = ['two_step'] is unknown. Give one of: calculator",
        ),
        ("data: {tasks: {b: {}}}", "data.tasks.b.task is missing. Give one of: calculator"),
        ("evaluate: {settings: {sampling: {stop: ['']}}}", "evaluate.settings.sampling.stop: every text contains the"),
        ("online: {runs: {a: {router: {replay: engine}}}}", "router.replay = 'engine': expected true or false, or sam"),
        (
            "online: {runs: {a: {rollout: {engine_servers: [1, 2]}}}}",
            "rollout.engine_servers = [1, 2]: expected a whole number, or a list of lists of whole numbers. `posttrain",
        ),
        (
            "sft: {runs: {main: {adapter: {type: lora, targets: [q_proj, 3]}}}}",
            "adapter.targets = ['q_proj', 3]: expected a text, or a list of texts. `posttrain",
        ),
        ("online: {runs: {a: {rollout: {replay: true}}}}", "replay = True: give KEY: VALUE pairs. Known here: groups,"),
        (
            "sft: {runs: {main: {template: {x: 'False'}}}}",
            "x = 'False' is a text, which templates treat as true; write",
        ),
        ("online: {runs: {a: {rollout: {sampling: {top_k: 1}}}}}", "top_k = 1: a token drawn from a single token has"),
    ],
)
def test_a_wrong_setting_is_named(text: str, words: str) -> None:
    change(text)
    assert words in mistakes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sft:", "section 'sft' is empty. Remove it, or write sft: {}"),
        ("sft: {runs: }", "sft.runs is empty. Remove it, or write runs: {}"),
        ("sft: {runs: [main]}", "sft.runs is ['main'], not a mapping of names to settings. Remove it, or write runs"),
        ("online: {runs: {}, seed: 1}", "online.seed: unknown key. Settings belong to a run: online.runs.NAME.seed"),
        ("sft: {run: {}}", "sft.run: unknown key. Did you mean 'runs'?"),
        ("base: {steps: 5}", "base.steps: unknown key. A run is base.GROUP.NAME; groups are scratch, folders, hub"),
        ("evaluate: {prompts: 5}", "evaluate.prompts: unknown key. It belongs to evaluate.settings, or to"),
        ("evaluate: {policies: {a: sft/main}}", "evaluate has no section 'settings'"),
        ("onlin: {}", "unknown section 'onlin'. Did you mean 'online'?"),
        ("[1, 2]", "holds no sections"),
        ("a: [", "not readable as YAML"),
        ("a: 1\na: 2", "duplicate key"),
        (
            "online:\n  runs:\n    a: {surrogate: {type: my_losses:soft, tau: 1}, reward: {my_rewards:brief: 1.0}}\n",
            "which `dvc exp run -S` cannot change:\n    a:\n      surrogate:\n        type: my_losses:soft\n",
        ),
        ("sft: {runs: {main: {start: http://x}}}", "line 1: DVC cannot read it (found unexpected ':'). Quote the text"),
    ],
)
def test_a_wrong_file_is_reported(text: str, words: str) -> None:
    Path("params.yaml").write_text(text)
    assert words in mistakes()


@pytest.mark.parametrize("path", ["../outside", "/etc"])
def test_a_folder_outside_the_workspace_is_refused(path: str) -> None:
    outside = Path("../outside")
    outside.mkdir(exist_ok=True)
    (outside / "config.json").write_text("{}")
    change(f"{{base: {{folders: {{m: {{path: {path}}}}}}}}}")
    assert f"base.folders.m.path = '{path}': outside the workspace. Copy it into the workspace" in mistakes()


def test_all_mistakes_are_reported_at_once() -> None:
    change(
        "{sft: {runs: {main: {start: base/tny}}}, online: {runs: {a: {algorithm: gpro}}}, "
        "base: {folders: {m: {path: x}}}}"
    )
    said = mistakes()
    assert all(
        words in said
        for words in ("'base/tny'", "'gpro'", "folder not found", "nothing was run or removed. Fix these 3")
    )


def test_a_mistake_is_one_line_with_one_fix() -> None:
    feedback = "preference: {runs: {dpo: {data: compared/feedback}}}\ndata: {samples: {compared: {tables: [pairs]}}}"
    said = "dpo needs a table of pairs. Use one, e.g. compared/pairs. Nothing was run or removed"
    change(feedback)
    assert mistakes() == f"params.yaml: preference.runs.dpo.data = 'compared/feedback': {said}"
    said = "unknown key. Did you mean 'after'? `posttrain params` explains every key. Nothing was run or removed"
    change("online: {runs: {a: {reward: {correct: {weight: 1.0, aftr: x}}}}}")
    assert mistakes() == f"params.yaml: online.runs.a.reward: correct.aftr: {said}"


def test_git_conflict_markers_are_reported() -> None:
    Path("params.yaml").write_text(f"<<<<<<< HEAD\n{RIGHT}=======\n{RIGHT}>>>>>>> other\n")
    assert mistakes().startswith("params.yaml: line 1: git left a merge conflict. Keep what is right between ")


OWN = "def short(rollouts):\n    return [0.0 for _ in rollouts]\n"


OUTSIDE = "which is outside custom/, so its changes would not be noticed. Move"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import json\nfrom own_words import LONGEST\n",
            f"custom/own_reward.py line 2: it imports own_words.py, {OUTSIDE} own_words.py to custom/. Nothing was run",
        ),
        ("import own_beside\n", f"custom/own_beside.py line 3: it imports apart/inner.py, {OUTSIDE} apart/inner.py to"),
        (
            "import x y\n",
            "custom/own_reward.py line 1: this is not valid Python (invalid syntax). Fix the file. Nothing",
        ),
    ],
)
def test_own_modules_are_read_before_they_are_run(workspace: Path, text: str, said: str) -> None:
    """Two runs name it: the mistake is reported once."""
    for folder in ("custom", "apart"):
        (workspace / folder).mkdir()
    for outside in ("own_words.py", "apart/inner.py"):
        (workspace / outside).write_text("LONGEST = 3\n")
    (workspace / "custom/own_beside.py").write_text("def late():\n    # where it is needed\n    import apart.inner\n")
    (workspace / "custom/own_reward.py").write_text(f"{text}def short(rollouts):\n    return [0.0 for _ in rollouts]\n")
    reward = 'reward: {"own_reward:short": 1.0}'
    change(f"online: {{runs: {{a: {{{reward}}}}}}}\nevaluate: {{settings: {{{reward}}}}}")
    assert mistakes().startswith(f"params.yaml: {said}")


@pytest.mark.parametrize(
    "text",
    [
        "online: {runs: {a: {rollout: {sampling: {top_p: 0.9, top_k: 20}}}}}",
        "online: {runs: {a: {algorithm: raft, rollout: {sampling: {top_p: 0.9, top_k: 20}}}}}",
        f"distill: {{runs: {{b: {{{GKD}, reward_model: none, rollout: {{sampling: {{top_k: 20}}}}}}}}}}",
        "data: {samples: {compared: {sampling: {top_p: 0.9, stop: ['Q:']}}}}",
    ],
)
def test_algorithms_without_sampler_log_probs_may_truncate_sampling(text: str) -> None:
    change(text)
    assert " runs are right" in check_params()


def test_the_example_of_the_page_on_pipelines_is_part_of_the_recipe() -> None:
    yaml = YAML(typ="safe", pure=True)
    page = (ROOT / "docs/pipelines.md").read_text(encoding="utf-8")
    chain, *_ = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    recipe = yaml.load((ROOT / "recipes/iterated.yaml").read_text(encoding="utf-8"))
    assert merge(yaml.load(chain), recipe) == recipe == merge(recipe, yaml.load(chain)), "the page shows parts of it"


def run_models() -> dict[str, list[type[BaseModel]]]:
    """Group of params.yaml -> the types that its runs may have."""
    found = {group: [model] for group, model in MODELS.items()}
    return found | {group: [one.model for one in rows.values()] for group, rows in ALGORITHMS.items()}


def test_the_example_of_a_model_from_scratch_is_right(workspace: Path) -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    example = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (workspace / "my/data").mkdir(parents=True)
    (workspace / "my/data/corpus.jsonl").touch()
    Path("params.yaml").write_text(example, encoding="utf-8")
    assert check_params().startswith("params.yaml: 2 runs are right")


def test_the_example_of_teachers_is_right() -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    (example,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "experts" in text]
    yaml = YAML(typ="safe", pure=True)
    run = yaml.load(RIGHT)["online"]["runs"]["a"]
    given = {"data": {"tasks": {"mine": {"task": "two_step"}}}, "online": {"runs": {"maths": run, "code": run}}}
    change(json.dumps(merge(given, yaml.load(example))))
    assert check_params().startswith(f"params.yaml: {RUNS + 6} runs are right")


def test_every_list_of_stages_agrees_with_the_stage_table() -> None:
    yaml = YAML(typ="safe", pure=True)
    groups = {name: stage.group for stage in STAGES for name in (stage.name, stage.sampled_by) if name}
    graph = yaml.load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    assert {name: one["foreach"].strip("${}") for name, one in graph["stages"].items() if "foreach" in one} == groups
    defaults = {section: inner for one in graph["vars"] for section, inner in one.items()}
    assert [f"{section}.{group}" for section, inner in defaults.items() for group in inner] == sorted(
        set(groups.values()), key=[f"{section}.{group}" for section, inner in GROUPS.items() for group in inner].index
    )
    assert all((ROOT / "stages" / f"{name}.py").is_file() for name in groups)


def test_a_run_that_is_still_being_typed_hides_no_other() -> None:
    assert evaluated({"evaluate": {"runs": {"shots": None}}}) == {"shots": Evaluated("", "", "evaluate_runs@shots")}
    for group, listed in (("evaluate.runs", evaluated), ("evaluate.lm_eval", evaluated), ("sft.runs", curve_runs)):
        section, _, inner = group.partition(".")
        with pytest.raises(ParamsError, match=f"{group}.a is not a mapping"):
            listed({section: {inner: {"a": "typed"}}})


def test_the_inputs_of_a_run_are_dependencies_in_dvc_yaml_and_must_be_given() -> None:
    stages = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    inputs = {
        stage["foreach"].strip("${}"): set(re.findall(r"\$\{item\.(\w+)\}", " ".join(stage["do"]["deps"])))
        for stage in stages.values()
        if "foreach" in stage
    }
    for group, models in run_models().items():
        for model in models:
            required = {name for name, field in model.model_fields.items() if field.is_required()}
            assert inputs[group] <= required, f"dvc.yaml reads more of {group} than {model.__name__} asks for"
            assert set(slots(model)) <= inputs[group], f"dvc.yaml lacks inputs of {group}: {model.__name__}"


def test_every_parameter_is_explained() -> None:
    for section in GROUPS:
        lines = [line for line in section_text(section).splitlines() if line.startswith("  ")]
        assert lines, section
        bare = [line for line in lines if not line.split("  ", 3)[-1].strip() or line.rstrip().endswith("=")]
        assert not bare, bare

"""Conversations as ids: what is learned, and that text can never pass for markup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import DataError, ParamsError
from posttrain.files import read_finite_json
from posttrain.measure.record import record_path, write_record
from posttrain.models.files.store import load_tokenizer
from posttrain.settings.params import Params
from posttrain.text.chat import DATE, ChatText, TemplateDate
from posttrain.text.templates import PROCESS, RenderError, RenderRequest, Template
from tests.library.models.tiny import tiny_folder

SPECIALS = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText(load_tokenizer(tiny_folder(tmp_path_factory.mktemp("chat"))))


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_prompt_and_its_answer_are_the_template_and_end_with_the_stop_token(text: ChatText) -> None:
    (one,) = text.exchanges([([turn("user", "1+1")], [turn("assistant", "#### 2")])])
    whole = text.tokenizer.apply_chat_template([turn("user", "1+1"), turn("assistant", "#### 2")], return_dict=False)
    assert one.prompt + one.rest == whole
    assert one.prompt == text.prompt([turn("user", "1+1")])
    assert one.rest[-1] == text.stop and text.stop not in one.rest[:-1]
    assert text.decode(one.rest) == "#### 2"


def test_a_completion_may_end_with_any_of_the_models_tokens(text: ChatText) -> None:
    other = text.tokenizer.convert_tokens_to_ids("<|pad|>")
    more = ChatText(text.tokenizer, "here", [other, text.stop])
    assert more.stops.tokens == (text.stop, other)
    ids = text.plain(["#### 2"])[0]
    assert [more.decode([*ids, end]) for end in more.stops.tokens] == ["#### 2", "#### 2"]
    assert text.decode([*ids, other]) == "#### 2<|pad|>"
    assert more.stops.decode([*ids, text.stop]) == "#### 2<|end|>", "stop strings see all that was written"


contents = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(SPECIALS)), min_size=1, max_size=5).map("".join)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(question=contents, answer=contents)
def test_content_never_becomes_markup_and_comes_back_as_it_was(text: ChatText, question: str, answer: str) -> None:
    special = {text.tokenizer.convert_tokens_to_ids(token) for token in (*SPECIALS, "<|system|>", "<|tool|>")}
    (one,) = text.exchanges([([turn("user", question)], [turn("assistant", answer)])])
    assert sum(token in special for token in one.prompt) == 3, "user, end, assistant"
    assert [token for token in one.rest if token in special] == [text.stop]
    assert text.decode(one.rest) == answer


def test_a_template_without_a_stop_token_is_refused(text: ChatText) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(DataError, match="no stop token"):
        ChatText(tokenizer).exchanges([([turn("user", "a")], [turn("assistant", "b")])])


def test_a_template_that_rewrites_the_past_is_refused(text: ChatText) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    with pytest.raises(DataError, match="changes earlier text"):
        ChatText(tokenizer).exchanges([([turn("user", "a")], [turn("assistant", "b")])])


def test_a_failing_template_is_an_error_of_the_data(text: ChatText) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = "{{ raise_exception('no system turns') }}"
    with pytest.raises(DataError, match="no system turns"):
        ChatText(tokenizer).prompt([turn("system", "a")])


def test_a_tokenizer_without_a_template_is_refused(text: ChatText, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="no chat template"):
        ChatText(tokenizer)


CHATML = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
OPENED = CHATML + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
SYSTEM, USER, ANSWER = turn("system", "Be kind."), turn("user", "1+1"), turn("assistant", "#### 2")

TEMPLATES = {
    "chatml": OPENED,
    "whitespace": "{%- for m in messages %}\n  {{- m.role }}: {{ m.content | trim }}\n{% endfor %}\n",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
    "break": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
    "json": "{{ messages | tojson(indent=2) }}{{ {'b': '<é>', 'a': none} | tojson(sort_keys=true) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "dict": "{{ dict(a=1) }}{{ dict.fromkeys([1, 2], 'x') }}",
    "specials": "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ nothing is defined }}",
    "macro": "{% macro say(m) %}[{{ m.content }}]{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
}


def with_template(text: ChatText, template: Any, today: str = DATE) -> ChatText:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = template
    return ChatText(tokenizer, "models/own", today=today)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("generation", [False, True])
def test_a_template_is_rendered_as_transformers_renders_it(text: ChatText, name: str, generation: bool) -> None:
    messages = [SYSTEM, USER, turn("assistant", "  <b>\ud83d\u0000 'é' \n"), turn("user", "\u2028")]
    tokenizer, template = text.tokenizer, TEMPLATES[name]
    theirs = tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=generation
    )
    one = Template(template, tokenizer.special_tokens_map, "2024-07-26")
    assert [found.text for found in one.render([RenderRequest(messages, generation)])] == [theirs]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 'x' * 2000000000 }}", "more than 512 MiB"),
        ("{{ 'x' | center(2000000000) }}", "more than 512 MiB"),
        ("{{ '%2000000000d' % 1 }}", "more than 512 MiB"),
        ("{% for a in range(110) %}{{ 'x' * 1000 }}{% endfor %}", "writes 110,000 characters"),
        ("{% for a in range(999999999) %}{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 100_000, "Error"),
        ("{% for", "unexpected 'end of template'"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ namespace(__class__=1) }}", "SecurityError"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_a_template_that_breaks_a_limit_is_refused(text: ChatText, template: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"models/own: the chat template fails on .* user turns.*{reason}"):
        with_template(text, template).prompt([USER])
    assert with_template(text, OPENED).prompt([USER]) == text.prompt([USER]), "the next conversation is rendered"


def test_a_killed_template_process_is_started_again() -> None:
    def rendered(source: str) -> list[str]:
        return [one.text for one in Template(source, {}, "2024-07-26").render([RenderRequest([], True)])]

    assert rendered("a") == ["a"]
    child = PROCESS.start()
    os.kill(child.pid, signal.SIGKILL)
    while child.alive:
        time.sleep(0.01)
    assert rendered("b") == ["b"]
    with pytest.raises(RenderError, match="no system"):
        rendered("{{ raise_exception('no system') }}")


def test_many_conversations_are_rendered_in_their_order_and_the_failing_one_is_named(text: ChatText) -> None:
    asked = [RenderRequest([turn("user", f"{n}" * (1 + n % 7 * 3000))], n % 2 == 0) for n in range(600)]
    some = Template(OPENED, {}, "2024-07-26").render(asked)
    assert [one.text for one in some] == [
        f"<|user|>{turns[0]['content']}<|end|>{'<|assistant|>' * opened}" for turns, opened, *_ in asked
    ]
    failing = "{% if '299' in messages[0].content %}{{ 1 / 0 }}{% endif %}" + OPENED
    with pytest.raises(DataError, match="which begins '299"):
        with_template(text, failing).prompts([[turn("user", f"{n}")] for n in range(300)])


@pytest.mark.slow
def test_a_template_that_never_ends_is_refused_and_the_conversation_named(text: ChatText) -> None:
    endless = "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"
    failing = "{% if messages[0].content == '9' %}" + endless + "{% endif %}" + OPENED
    with pytest.raises(DataError, match="which begins '9': rendering takes longer than 5 s"):
        with_template(text, failing).prompts([[turn("user", f"{n}")] for n in range(20)])
    assert with_template(text, OPENED).prompt([USER]) == text.prompt([USER]), "the next conversation is rendered"


@pytest.mark.slow
def test_the_template_process_ends_with_its_parent() -> None:
    code = (
        "import os\nfrom posttrain.text.templates import PROCESS\n"
        "print(PROCESS.start().pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    for _ in range(100):
        if not Path(f"/proc/{int(done.stdout)}").exists():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail("the child is still there after ten seconds")


def test_a_template_that_asks_for_the_date_gets_the_fixed_one(
    text: ChatText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("posttrain.measure.record._NOTED", {})
    text.prompt([USER])
    write_record("plain", {})
    llama = "{%- if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}none{% endif %}" + OPENED
    one, other = with_template(text, llama), with_template(text, llama, "2025-01-02")
    assert one.decode(one.prompt([USER])).startswith("26 Jul 2024")
    assert "date" not in read_finite_json(record_path("plain"))
    assert other.decode(other.prompt([USER])).startswith("02 Jan 2025")
    write_record("dated", {})
    assert read_finite_json(record_path("dated"))["date"] == "2025-01-02"


class Dated(Params):
    date: TemplateDate = DATE


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("2024-07-27", r'DVC does not read dates of YAML\. Put it in quotes: "2024-07-27"'),
        ('"2024-13-01"', "month must be in 1..12"),
        ("7", "valid string"),
    ],
)
def test_a_date_is_iso_text(tmp_path: Path, written: str, reason: str) -> None:
    from posttrain.pipeline.params.params_file import load

    file = tmp_path / "params.yaml"
    file.write_text(f"sft: {{runs: {{main: {{date: {written}}}}}}}")
    with pytest.raises(ParamsError, match=reason):
        load(Dated, "sft.runs.main", path=file)
    file.write_text('sft: {runs: {main: {date: "2024-07-27"}}}')
    assert load(Dated, "sft.runs.main", path=file).date == "2024-07-27"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (CHATML, r"ignores add_generation_prompt .* of system, user turns.*Let it write '<\|assistant\|>'"),
        (OPENED.replace("messages", "messages if m['role'] != 'system'"), r"leaves out turn 1 \(system\)"),
        (OPENED.replace("messages", "messages | reverse"), "changes the order"),
        ("{{ raise_exception('System role not supported') }}", "system, user.* turns.*System role not supported"),
    ],
)
def test_a_template_that_does_not_take_the_turns_is_refused(text: ChatText, template: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        with_template(text, template).prompt([SYSTEM, USER])
    with pytest.raises(DataError, match=problem):
        with_template(text, template).exchanges([([SYSTEM, USER], [ANSWER])])


def test_a_template_without_a_header_needs_no_generation_prompt(text: ChatText) -> None:
    mistral = (
        "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
        "{% else %} {{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    )
    (one,) = with_template(text, mistral).exchanges([([USER], [ANSWER])])
    assert text.decode(one.prompt) == "[INST] 1+1 [/INST]"
    assert text.decode(one.rest) == " #### 2"


def test_the_default_of_several_templates_is_used(text: ChatText) -> None:
    several = with_template(text, {"default": OPENED, "tool_use": "{{ 1 / 0 }}"})
    assert several.prompt([USER]) == text.prompt([USER])
    with pytest.raises(DataError, match="several chat templates"):
        with_template(text, {"tool_use": OPENED})

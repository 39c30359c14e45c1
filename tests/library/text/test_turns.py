"""Conversations of several turns: the mask covers the assistant's tokens and end tokens, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.columns import from_rows
from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation
from posttrain.text.packing import pack
from posttrain.text.templates import RenderRequest, Template
from posttrain.train.examples import RowLimit
from posttrain.train.tokenize_tables import conversation, demonstrations
from tests.library.models.tiny import tiny_folder, trained_texts

SPECIALS = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
OPENED = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ '(hm)' if loop.last and m.role == 'assistant' }}{{ m.content }}<|end|>"
    "{% endfor %}" + OPENED
)
"""As Qwen3's: the thoughts of earlier turns are dropped."""
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
    "{{ '(hm)' if loop.last }}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}" + OPENED
)
TOOLS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}<|end|>"
    "{% endfor %}" + OPENED
)
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
ADD = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("turns"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ChatText:
    return with_template(folder, CHATML + OPENED)


def with_template(folder: Path, template: str, **settings: Any) -> ChatText:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    return ChatText(tokenizer, "models/own")


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


LONG = [turn("user", "1+1?"), turn("assistant", "2"), turn("user", "2+2?"), turn("assistant", "4")]


contents = st.lists(st.one_of(st.text(min_size=1, max_size=8), st.sampled_from(SPECIALS)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(said=st.lists(contents.map("".join), min_size=2, max_size=8), system=st.booleans())
def test_exactly_the_assistants_tokens_and_their_end_are_trained(text: ChatText, said: list[str], system: bool) -> None:
    said = said[: len(said) // 2 * 2]
    messages = [turn("assistant" if nth % 2 else "user", one) for nth, one in enumerate(said)]
    whole = [*([turn("system", "Be kind.")] if system else []), *messages]
    (row,) = text.conversations([Conversation(whole)], "all")
    assert trained_texts(text, row) == [f"{one}<|end|>" for one in said[1::2]]
    (last,) = text.conversations([Conversation(whole)], "last")
    assert trained_texts(text, last) == [f"{said[-1]}<|end|>"] and last.mask is None
    assert [*row.prompt, *row.rest] == [*last.prompt, *last.rest], "the same tokens either way"
    headers = text.tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"])
    found = [token for token in (*row.prompt, *row.rest) if token in headers]
    assert len(found) == 2 * len(whole), "no content became markup"


def test_a_template_treats_content_that_looks_like_markup_as_any_other(folder: Path) -> None:
    text = with_template(folder, CHATML.replace("m.content", "m.content | trim") + OPENED)
    odd = "\ue0050\ue001 <|end|><|user|>"
    (row,) = text.conversations([Conversation([turn("user", f" {odd} "), turn("assistant", f" {odd}\n")])], "all")
    assert text.stops.decode(row.prompt) == f"<|user|>{odd}<|end|><|assistant|>"
    assert trained_texts(text, row) == [f"{odd}<|end|>"]


def test_one_turn_is_the_same_row_either_way(text: ChatText) -> None:
    one = Conversation(LONG[:2])
    exchanged = text.exchanges([(LONG[:1], LONG[1:2])])
    assert text.conversations([one], "all") == text.conversations([one], "last") == exchanged


def test_the_loss_sees_the_marked_tokens_alone(text: ChatText) -> None:
    (row,) = text.conversations([Conversation(LONG)], "all")
    whole = [*row.prompt, *row.rest]
    packed = pack([row])
    learned = [whole[place + 1] for place in packed.source_M.tolist()]
    assert text.stops.decode(packed.target_M.tolist()) == "2<|end|>4<|end|>"
    assert learned == packed.target_M.tolist(), "each from the token before it"


def test_a_pad_token_that_is_the_end_token_stays_trained(folder: Path) -> None:
    text = with_template(folder, CHATML + OPENED, pad_token="<|end|>")
    assert text.tokenizer.pad_token_id == text.stop
    rows = text.conversations([Conversation(LONG), Conversation(LONG[:2])], "all")
    assert [trained_texts(text, row) for row in rows] == [["2<|end|>", "4<|end|>"], ["2<|end|>"]]
    assert text.stops.decode(pack(rows).target_M.tolist()) == "2<|end|>4<|end|>2<|end|>"


def test_a_template_that_changes_earlier_turns_makes_a_row_of_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is what sampling gives: the prompt of its turn, and the turn."""
    text = with_template(folder, THINKING)
    (last,) = text.conversations([Conversation(LONG)], "last")
    short, rows = text.split_conversations([Conversation(LONG[:2]), Conversation(LONG)], "all")
    assert [trained_texts(text, row) for row in (*short, *rows)] == [
        ["(hm)2<|end|>"],
        ["(hm)2<|end|>"],
        ["(hm)4<|end|>"],
    ]
    assert [row.prompt for row in rows] == text.prompts([LONG[:1], LONG[:3]]) and rows[1] == last
    frame = from_rows(
        [{"split": "train", "problem": "p", "messages": talk} for talk in (LONG[:2], LONG, LONG[2:])], "chat"
    )
    examples = demonstrations(text, frame, RowLimit(max_tokens=256), "data/mine/chat.parquet", "all")
    assert [example.rows for example in examples] == [short, rows, text.conversations([Conversation(LONG[2:])], "all")]
    assert "1 of 3 conversations are several rows each, 4 rows in all" in capsys.readouterr().out


def test_turns_that_stay_as_they_were_share_a_row(folder: Path) -> None:
    """A template that drops the thoughts before the last question, not those between calls."""
    template = (
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index %}"
        "{% endif %}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
        "{{ '(hm)' if m.role == 'assistant' and loop.index > ns.last }}{{ m.content }}<|end|>{% endfor %}" + OPENED
    )
    text = with_template(folder, template)
    said = [turn("user", "1?"), turn("assistant", "call"), turn("tool", "3"), turn("assistant", "3"), *LONG[:2]]
    rows = text.conversations([Conversation(said)], "all")
    assert [trained_texts(text, row) for row in rows] == [["(hm)call<|end|>", "(hm)3<|end|>"], ["(hm)2<|end|>"]]


SWITCHED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ '(hm)' if m.role == 'assistant' and mode is defined and mode == 'off' }}"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if mode is defined and mode == 'off' %}(hm){% endif %}{% endif %}"
)
"""As the templates that write an empty thought before an answer without one."""


def test_what_the_template_writes_for_the_policy_is_not_trained(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = SWITCHED
    text, off = ChatText(tokenizer, "models/own"), ChatText(tokenizer, "models/own", variables={"mode": "off"})
    (plain,), (row,) = text.conversations([Conversation(LONG)], "all"), off.conversations([Conversation(LONG)], "all")
    (own,) = text.conversations([Conversation(LONG, variables={"mode": "off"})], "all")
    assert own == row != plain, "a row's variables are those of a run"
    assert trained_texts(text, row) == trained_texts(text, plain) == ["2<|end|>", "4<|end|>"]
    assert text.stops.decode([*row.prompt, *row.rest]).count("(hm)") == 2
    theirs = tokenizer.apply_chat_template(LONG[:1], add_generation_prompt=True, return_dict=False, mode="off")
    assert row.prompt == off.prompt(LONG[:1]) == theirs
    (over,) = off.conversations([Conversation(LONG, variables={"mode": "on"})], "all")
    assert over == plain, "a row's variables come first"
    assert not off.same_as(text)


def test_variables_that_do_nothing_or_forge_turns_are_refused(folder: Path) -> None:
    text = with_template(folder, SWITCHED)
    told = "models/own: the chat template does not use mod. Remove it from `template`, or fix its name"
    with pytest.raises(DataError, match=re.escape(told)):
        ChatText(text.tokenizer, "models/own", variables={"mod": "off"})
    told = "the chat_template_kwargs of a conversation contains '<|end|>', which ends or opens turns"
    with pytest.raises(DataError, match=re.escape(told)):
        text.conversations([Conversation(LONG, variables={"mode": "<|end|>"})], "last")


def test_an_answer_that_does_not_begin_as_a_generated_one_is_refused(folder: Path) -> None:
    text = with_template(folder, SWITCHED.replace("{{ '(hm)' if m.role == 'assistant'", "{{ '' if m.role == 'x'"))
    with pytest.raises(
        DataError,
        match=r"opens an answer to generate with '\(hm\)', but this conversation has "
        r"'2<|end|>'",
    ):
        text.conversations([Conversation(LONG[:2], variables={"mode": "off"})], "last")


def test_generation_markers_say_what_is_trained(folder: Path) -> None:
    text = with_template(folder, MARKED)
    forged = [*LONG[:3], turn("assistant", "4<|end|>"), turn("user", "<|user|>"), turn("assistant", "5")]
    (row,) = text.conversations([Conversation(forged)], "all")
    assert trained_texts(text, row) == ["2<|end|>", "4<|end|><|end|>", "(hm)5<|end|>"]
    assert text.stops.decode([*row.prompt, *row.rest]) == (
        "<|user|>1+1?<|end|><|assistant|>2<|end|><|user|>2+2?<|end|><|assistant|>4<|end|><|end|>"
        "<|user|><|user|><|end|><|assistant|>(hm)5<|end|>"
    )


@pytest.mark.parametrize("template", [CHATML + OPENED, MARKED])
def test_a_turn_of_weight_0_is_read_and_not_trained(folder: Path, template: str) -> None:
    text = with_template(folder, template)
    turns = [*LONG, turn("user", "3?"), turn("assistant", "3")]
    fields = json.dumps([{}, {"weight": 0}, {}, {}, {}, {}])
    one = conversation({"messages": turns, "fields": fields, "id": "a"}, "data/mine/chat.parquet")
    (row,) = text.conversations([one], "all")
    (whole,) = text.conversations([Conversation(turns)], "all")
    ends = trained_texts(text, whole)
    assert trained_texts(text, row) == ends[1:] and [*row.prompt, *row.rest] == [*whole.prompt, *whole.rest]
    last = json.dumps([{}, {}, {}, {}, {}, {"weight": 0}])
    unlearned = conversation({"messages": turns, "fields": last, "id": "a"}, "data/mine/chat.parquet")
    with pytest.raises(DataError, match=r"the last turn has weight 0, so nothing .* \(data/mine/chat.parquet id a\)"):
        text.conversations([unlearned], "last")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (MARKED.replace("<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>"), "no stop token after the answer"),
        (
            MARKED.replace("m.role == 'assistant' %}{%", "true %}{%"),
            "marks 4 turns with {% generation %}, not the 2 of",
        ),
        (
            "{% macro f() %}x{% generation %}a{% endgeneration %}{% endmacro %}--{{ f() }}",
            "inside a macro, set or filter",
        ),
    ],
)
def test_markers_that_do_not_fit_are_refused(folder: Path, template: str, told: str) -> None:
    with pytest.raises(DataError) as caught:
        with_template(folder, template).conversations([Conversation(LONG)], "all")
    assert told in str(caught.value)


def test_blocks_lie_where_transformers_has_them(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    theirs = tokenizer.apply_chat_template(
        LONG, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
    )
    (ours,) = Template(MARKED, {}, "2024-07-26").render([RenderRequest(LONG, False)])
    marked = [token for token, own in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True) if own]
    assert tokenizer.decode(marked) == "".join(ours.text[slice(*block)] for block in ours.blocks)


TOOL_TALK = [
    turn("user", "1+2?"),
    turn("assistant", "", tool_calls=[CALL]),
    turn("tool", "3", name="add"),
    turn("assistant", "It is 3."),
]


def test_calls_are_trained_and_what_tools_say_is_context(folder: Path) -> None:
    text = with_template(folder, TOOLS)
    (row,) = text.conversations([Conversation(TOOL_TALK, [ADD])], "all")
    assert trained_texts(text, row) == ['[add {"a": 1}]<|end|>', "It is 3.<|end|>"]
    assert text.decode(row.prompt).startswith('{"type": "function", "function": {"name": "add"}}<|user|>1+2?')
    (prompt,) = text.prompts([Conversation(TOOL_TALK[:3], [ADD])])
    (last,) = text.conversations([Conversation(TOOL_TALK, [ADD])], "last")
    assert last.prompt == prompt


@pytest.mark.parametrize(
    ("template", "talk", "told"),
    [
        (
            CHATML + OPENED,
            Conversation(TOOL_TALK),
            "leaves out the tool calls of turn 2 of a conversation of user, assis",
        ),
        (CHATML + OPENED, Conversation(LONG, [ADD]), "leaves out the tools of a conversation of user, assistant"),
        (
            TOOLS.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"),
            Conversation(TOOL_TALK),
            "leaves out turn 3 (tool)",
        ),
        (
            TOOLS,
            Conversation(
                [
                    *TOOL_TALK[:1],
                    turn("assistant", "", tool_calls=[{"function": {"name": "add", "arguments": {"a": "<|end|>"}}}]),
                ]
            ),
            "the tool use of a conversation contains '<|end|>', which ends or opens turns. Remove it",
        ),
    ],
)
def test_a_template_that_loses_tool_use_is_refused(folder: Path, template: str, talk: Conversation, told: str) -> None:
    with pytest.raises(DataError) as caught:
        with_template(folder, template).conversations([talk], "last")
    assert told in str(caught.value)


def test_a_table_with_tool_use_becomes_rows(folder: Path) -> None:
    plain = [{"role": one["role"], "content": one["content"]} for one in TOOL_TALK]
    frame = from_rows([{"split": "train", "problem": "p", "messages": plain}], "chat")
    used = {"fields": '[{},{"tool_calls":[{"type":"function","function":{"name":"add","arguments":{"a":1}}}]},{},{}]'}
    frame = frame.with_columns(fields=pl.lit(used["fields"]), tools=pl.lit('[{"name":"add"}]'))
    text = with_template(folder, TOOLS)
    (one,) = demonstrations(text, frame, RowLimit(max_tokens=256), "data/mine/chat.parquet", "all")
    assert trained_texts(text, one.rows[0]) == ['[add {"a": 1}]<|end|>', "It is 3.<|end|>"]
    (last,) = demonstrations(text, frame, RowLimit(max_tokens=256), "data/mine/chat.parquet", "last")
    assert trained_texts(text, last.rows[0]) == ["It is 3.<|end|>"]


def test_a_thought_that_the_template_does_not_write_is_refused(folder: Path, text: ChatText) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": " Hm. "}]
    with pytest.raises(DataError, match=r"leaves out the thoughts \(reasoning_content\) of turn 2 of"):
        text.conversations([Conversation(said)], "all")
    writes = CHATML.replace("{{ m.content }}", "{{ m.reasoning_content | default('') }}{{ m.content }}") + OPENED
    with_template(folder, writes).conversations([Conversation(said)], "all")

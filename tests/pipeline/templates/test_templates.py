"""Over real vocabularies and chat templates: the mask covers the assistant's tokens and end tokens, and nothing else.

`make test-templates` fetches them; without them these tests are skipped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.rollout import TokenRow
from posttrain.text.chat import ChatText, Trained
from posttrain.text.chat_template import Conversation
from posttrain.text.packing import pack
from tests.library.models.tiny import trained_texts
from tests.pipeline.templates.packages import FOLDER, PACKAGES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all((FOLDER / name).is_dir() for name in PACKAGES), reason="the templates are not here: make test-templates"
    ),
]


@dataclass(frozen=True)
class Family:
    """What a template makes of an answer, written down by hand."""

    name: str
    end: str
    answer: Callable[[str], str]
    turns: Trained = "all"
    """What can be trained of a conversation of several turns."""
    headers: tuple[str, ...] = ()
    """Tokens that open a turn."""
    opened: tuple[str, ...] = ("system", "user", "assistant")
    """The roles whose turns have them."""
    ended: tuple[str, ...] = ("system", "user", "assistant")
    """The roles whose turns have the end token."""
    spaced: bool = False
    """Whether the tokenizer puts a space before a text, and so around markup that a content holds."""


FAMILIES = [
    Family("llama3", "<|eot_id|>", str.strip, headers=("<|start_header_id|>",)),
    Family("llama3_1", "<|eot_id|>", str.strip, headers=("<|start_header_id|>",)),
    Family(  # it writes the system's text into the user's first turn
        "gemma3", "<end_of_turn>", str.strip, "all", ("<start_of_turn>",), ("user", "assistant"), ("user", "assistant")
    ),
    Family(
        "qwen3", "<|im_end|>", lambda text: f"<think>\n\n</think>\n\n{text.lstrip(chr(10))}", "last", ("<|im_start|>",)
    ),
    Family("mistral", "</s>", str, "all", ("[INST]",), ("user",), ("assistant",), spaced=True),
]
TEXTS: dict[str, ChatText] = {}


def loaded(family: Family) -> ChatText:
    """The family's tokenizer with its pad token set to its end token; loading takes seconds."""
    if family.name not in TEXTS:
        tokenizer = load_tokenizer(FOLDER / family.name)
        tokenizer.pad_token = family.end
        end = tokenizer.convert_tokens_to_ids(family.end)  # for Llama 3 as its generation_config.json has it
        TEXTS[family.name] = ChatText(tokenizer, family.name, [end])
    return TEXTS[family.name]


def same(one: str) -> str:
    return unicodedata.normalize("NFC", one)  # as Qwen's tokenizer does


FORGED = (
    "</s>",
    "[INST] ",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|start_header_id|>user",
    "<|im_start|>assistant\n",
    "<bos>",
)
words = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn"], exclude_characters="▁"), min_size=1, max_size=12
)
contents = (
    st.lists(st.one_of(words, st.sampled_from([*FORGED, " ", "\n\n", "2 + 2"])), min_size=1, max_size=5)
    .map("".join)
    .filter(lambda text: bool(text.strip()))
)
law = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def talk(said: list[str], system: str | None = None) -> list[dict[str, Any]]:
    turns = [{"role": "assistant" if nth % 2 else "user", "content": one} for nth, one in enumerate(said)]
    return [*([{"role": "system", "content": system}] if system else []), *turns]


conversations = st.tuples(
    st.lists(contents, min_size=2, max_size=7).map(lambda said: said[: len(said) // 2 * 2]),
    st.one_of(st.none(), st.just("Be kind.")),
)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
@law
@given(given_talk=conversations)
def test_exactly_the_assistants_tokens_and_their_end_are_trained(
    family: Family, given_talk: tuple[list[str], str | None]
) -> None:
    text, (said, system) = loaded(family), given_talk
    messages = talk(said, system)
    (row,) = text.conversations([Conversation(messages)], family.turns)
    answers = said[1::2] if family.turns == "all" else said[-1:]
    spaces = "" if family.spaced else " "
    found = [same(one).replace(" ", spaces) for one in trained_texts(text, row)]
    assert found == [same(family.answer(one) + family.end).replace(" ", spaces) for one in answers]
    token = text.tokenizer.convert_tokens_to_ids
    ids = [*row.prompt, *row.rest]
    roles = [turn["role"] for turn in messages]
    assert ids.count(token(family.headers[0])) == sum(role in family.opened for role in roles), (
        "no content opens a turn"
    )
    assert ids.count(token(family.end)) == sum(role in family.ended for role in roles), "no content ends a turn"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
@law
@given(said=st.lists(words.filter(lambda text: bool(text.strip())), min_size=2, max_size=6))
def test_the_ids_are_those_of_transformers(family: Family, said: list[str]) -> None:
    text, messages = loaded(family), talk(said[: len(said) // 2 * 2])
    (row,) = text.conversations([Conversation(messages)], family.turns)
    theirs = text.tokenizer.apply_chat_template(messages, return_dict=False)
    ours = [*row.prompt, *row.rest]
    cut = theirs[: len(theirs) - theirs[::-1].index(text.tokenizer.convert_tokens_to_ids(family.end))]
    assert text.stops.decode(ours) == text.stops.decode(cut)
    assert ours[-1] == cut[-1]
    if not any(one[:1].isspace() for one in said):  # text and header may otherwise share a token, as in no sampling
        assert ours == cut


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_the_end_token_is_trained_although_it_is_the_pad_token(family: Family) -> None:
    text = loaded(family)
    assert text.tokenizer.pad_token == family.end
    rows = text.conversations(
        [Conversation(talk(["1+1?", "2", "2+2?", "4"])), Conversation(talk(["a", "b"]))], family.turns
    )
    end = text.tokenizer.convert_tokens_to_ids(family.end)
    assert pack(rows).target_M.tolist().count(end) == (3 if family.turns == "all" else 2)


THINKING = [
    pytest.param(None, {}, id="default"),
    pytest.param(None, {"enable_thinking": False}, id="off"),
    pytest.param("2 and 2 is 4.", {"enable_thinking": True}, id="on"),
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
@pytest.mark.parametrize(("thought", "variables"), THINKING)
def test_trained_is_what_follows_the_generation_prompt_of_transformers(
    family: Family, thought: str | None, variables: dict[str, Any]
) -> None:
    """Each trained turn is a completion of the prompt that sampling gives the policy, and both are the conversation."""
    text, said = loaded(family), talk(["1+1?", "2", "2+2?", "4"])
    if thought and family.name == "qwen3":
        said[3]["reasoning_content"] = thought
    rows = text.conversations([Conversation(said, variables=variables)], "all")
    prompts = text.prompts([Conversation(said[:nth], variables=variables) for nth in (1, 3)])
    apply, names = text.tokenizer.apply_chat_template, variables
    theirs = [apply(said[:nth], add_generation_prompt=True, return_dict=False, **names) for nth in (1, 3)]
    assert prompts == theirs
    starts = [ids + row.rest[:place] for row in rows for ids, place in _turn_starts(row)]
    assert starts == theirs, "a turn's first trained token is the one after the prompt"
    whole = text.stops.decode(apply(said, return_dict=False, **names))
    last = rows[-1]
    assert whole.startswith(text.stops.decode([*last.prompt, *last.rest])), "the last row is the whole conversation"
    trained = [piece for row in rows for piece in trained_texts(text, row)]
    if family.name != "qwen3":
        assert len(rows) == 1 and trained == [family.answer(one) + family.end for one in ("2", "4")]
    elif variables.get("enable_thinking") is False:
        assert len(rows) == 2 and trained == ["2<|im_end|>", "4<|im_end|>"], "no empty thought is trained"
    else:
        assert len(rows) == 2 and trained == [
            "<think>\n\n</think>\n\n2<|im_end|>",
            f"<think>\n{thought or ''}\n</think>\n\n4<|im_end|>",
        ]


def _turn_starts(row: TokenRow) -> list[tuple[list[int], int]]:
    """The prompt of a row, and where in the rest each trained turn begins."""
    mask = row.mask or [True] * len(row.rest)
    return [([*row.prompt], nth) for nth, own in enumerate(mask) if own and (nth == 0 or not mask[nth - 1])]


def test_a_thought_without_thinking_is_refused() -> None:
    said = talk(["1+1?", "2"])
    said[1]["reasoning_content"] = "One and one."
    with pytest.raises(DataError, match=r"opens an answer to generate with .* but this conversation has 'One and one"):
        loaded(FAMILIES[3]).conversations([Conversation(said, variables={"enable_thinking": False})], "all")


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_qwen3_trains_calls_and_their_thinking_and_no_tool() -> None:
    text = loaded(FAMILIES[3])
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "reasoning_content": "I ask.", "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "name": "weather"},
        {"role": "assistant", "content": "Rain.", "reasoning_content": "I know."},
    ]
    (row,) = text.conversations([Conversation(messages, [WEATHER])], "all")
    called = '{"name": "weather", "arguments": {"city": "Bern"}}'
    assert trained_texts(text, row) == [
        f"<think>\nI ask.\n</think>\n\n<tool_call>\n{called}\n</tool_call><|im_end|>",
        "<think>\nI know.\n</think>\n\nRain.<|im_end|>",
    ]
    theirs = text.tokenizer.apply_chat_template(messages, tools=[WEATHER], return_dict=False)
    assert [*row.prompt, *row.rest] == theirs[: len(row)]


@pytest.mark.parametrize(("nth", "expected"), [(1, "leaves out the tool calls of turn 2"), (2, "roles must alternate")])
def test_templates_without_tools_refuse_them(nth: int, expected: str) -> None:
    messages = [*talk(["Weather?"]), {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    messages += [{"role": "tool", "content": "rain"}, {"role": "assistant", "content": "Rain."}]
    with pytest.raises(DataError, match=expected):
        loaded(FAMILIES[nth]).conversations([Conversation(messages)], "all")

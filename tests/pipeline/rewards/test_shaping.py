"""Rewards for form, language, length and repetition, as runs use them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.runs.online import PolicyRun
from posttrain.rewards.catalog import REWARDS, Rewards
from posttrain.rewards.length import soft_overlong
from posttrain.rewards.reward import Context
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.settings.params import Params, check
from tests.library.models.tiny import rollout_of

RUNTIME = Runtime(DeviceParams())


class Settings(Params):
    reward: Rewards


def summed(name: str, max_tokens: int | None = None, **options: Any) -> RewardSum:
    """A reward as params.yaml names it."""
    terms = check(Settings, {"reward": {name: {"weight": 1.0, **options}}}, where="online.runs.a").reward
    return RewardSum(terms, Context(RUNTIME, "test", max_tokens=max_tokens))


@lru_cache(maxsize=8)
def started(name: str, max_tokens: int | None, options: str) -> RewardSum:
    """Return the reward whose worker processes an earlier call with these options has started."""
    return summed(name, max_tokens, **json.loads(options))


def scored(name: str, *rollouts: Rollout | str, max_tokens: int | None = None, **options: Any) -> list[Score]:
    whole = [rollout_of(one) if isinstance(one, str) else one for one in rollouts]
    return [one.scores[name] for one in started(name, max_tokens, json.dumps(options)).score(whole)]


def failure(name: str, rollout: Rollout, max_tokens: int | None = None, **options: Any) -> str:
    """Status and reason of a rollout that cannot be scored."""
    (score,) = scored(name, rollout, max_tokens=max_tokens, **options)
    return f"{score.status}: {score.reason}"


def values(name: str, *rollouts: Rollout | str, **options: Any) -> list[float]:
    return [one.value for one in scored(name, *rollouts, **options)]


def of_tokens(count: int, *, before: int = 0) -> Rollout:
    """A completion of so many tokens; of several turns if there are others before it."""
    mask = [True] * before + [False] * 3 + [True] * count if before else None
    ids = list(range(count + before + (3 if before else 0)))
    return replace(rollout_of("text"), row=TokenRow([1], ids, mask), logps=[0.0] * (count + before))


# --- format

TAGGED = "<think>2 + 2 = 4</think>\n<answer>4</answer>"
REFUSED = [
    "<answer>4</answer>",
    "4",
    "",
    "<answer>4</answer><think>2</think>",
    "<think>2</think><answer>4</answer> so 4",
    "So <think>2</think><answer>4</answer>",
    "<think>2</think> so <answer>4</answer>",
    "<think>2</think><answer>4</answer><answer>5</answer>",
    "<think>2</think><think>2</think><answer>4</answer>",
    "<think><think>2</think></think><answer>4</answer>",
    "<think>2<answer>5</answer></think><answer>4</answer>",
    "<think>2</think><answer>4<think></answer>",
    "<think>2</answer><answer>4</think>",
    "<think>2</think><answer>4",
    "<think>2</think><answer>4</ answer>",
    "<THINK>2</THINK><answer>4</answer>",
    "<think>2</think><answer>4</answer></Answer>",
    "<think>< /think ></think><answer>4</answer>",
    "<think>2 <answer id='1'></think><answer>4</answer>",
    "<think></think><answer>4</answer>",
    "<think> \n</think><answer>4</answer>",
    "<think>\u200b\u200b</think><answer>4</answer>",
    "\u200b<think>2</think><answer>4</answer>",
    "<think>2</think><answer>4</answer>" * 2,
]


def test_tags_are_right_once_in_their_order_with_nothing_around_them() -> None:
    right = [TAGGED, f"\n {TAGGED}\n\n", "<think>a < b and b > c, <b>bold</b></think><answer>x<y</answer>"]
    right.append("<think>I am thinking: <thinking></think><answer>4</answer>")
    assert values("format", *right, tags=["think", "answer"]) == [1.0] * 4
    assert values("format", *REFUSED, tags=["think", "answer"]) == [0.0] * len(REFUSED)
    (cut,) = scored("format", rollout_of(TAGGED, truncated=True), tags=["think", "answer"])
    assert (cut.value, cut.reason) == (0.0, "it is truncated")


def test_empty_parts_of_tags_are_right_only_where_they_are_allowed() -> None:
    empty = "<think>\n</think><answer></answer>"
    assert values("format", empty, tags=["think", "answer"], empty="allow") == [1.0]
    assert values("format", empty, tags=["think", "answer"]) == [0.0]


CONTENT = st.text().filter(lambda text: "<" not in text and ">" not in text)


@pytest.mark.slow
@given(CONTENT, CONTENT)
def test_the_score_of_tags_does_not_depend_on_what_is_inside_or_makes_it_wrong_outside(inner: str, outer: str) -> None:
    reward = summed("format", tags=["think", "answer"], empty="allow")
    texts = [f"<think>{inner}</think>\n<answer>{outer}</answer>", f"<think>{inner}</think>{outer}<answer>4</answer>"]
    inside, between = (one.scores["format"].value for one in reward.score([rollout_of(text) for text in texts]))
    assert inside == 1.0 and between == float(not outer.strip())


def test_a_template_matches_the_whole_completion() -> None:
    template = r"(?s).+\nAnswer: \d+"
    assert values("format", "2+2\nAnswer: 4", "2+2\nAnswer: 4.", "Answer: 4", template=template) == [1.0, 0.0, 0.0]
    assert values("format", rollout_of("2\nAnswer: 4", truncated=True), template=template) == [0.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tags": ["think"], "template": "x"}, "tags and template exclude each other"),
        ({"tags": []}, "different names"),
        ({"tags": ["<think>"]}, "without < and >"),
        ({"tags": ["a", "A"]}, "different names"),
        ({"empty": "allow"}, "empty only works with tags"),
        ({"template": "(a"}, "is not a regular expression (missing )"),
        ({"tag": ["a"]}, "Did you mean 'tags'?"),
    ],
)
def test_wrong_forms_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError) as caught:
        summed("format", **options)
    assert said in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"after": "####"}, {"tags": ["think", "answer"]}, {"tags": ["only"]}])
def test_the_examples_of_the_form_have_their_scores(options: dict[str, Any]) -> None:
    term = summed("format", **options).terms["format"]
    found = term.reward.examples(Prompt("p", [], []), term.options)
    assert found.right and found.wrong
    assert values("format", *found.right, **options) == [1.0] * len(found.right)
    assert values("format", *found.wrong, **options) == [0.0] * len(found.wrong)


# --- regex


def test_a_pattern_is_searched_for_or_matches_all() -> None:
    assert values("regex", "Step 1: add", "step 1", "", pattern=r"Step \d") == [1.0, 0.0, 0.0]
    assert values("regex", "yes", "yes, it is", "YES", pattern="(?i)yes", match="full") == [1.0, 0.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(.*a){25}x"])
def test_a_completion_on_which_a_pattern_takes_exponential_time_scores_0(pattern: str) -> None:
    began, text = time.process_time(), rollout_of("a" * 5000 + "!")
    for name, options in {"regex": {"pattern": pattern}, "format": {"template": pattern}}.items():
        (score,) = summed(name, **options).score([text])
        found = score.scores[name]
        assert (found.value, found.status) == (0.0, "unparseable"), "it stays in its group"
        assert re.search("matching .* takes over 1 s of CPU time", found.reason)
    assert time.process_time() - began < 10


# --- language


@pytest.mark.parametrize(
    ("text", "script", "share"),
    [
        ("The answer is four.", "latin", 1.0),
        ("Die Antwort ist größer, ça va", "latin", 1.0),
        ("Ответ равен четырём", "cyrillic", 1.0),
        ("Ответ is 4", "cyrillic", 0.5),
        ("Привeт всем", "cyrillic", 0.5),
        ("答案是四", "han", 1.0),
        ("答案 is four", "han", 0.5),
        ("答えは四です", ["han", "hiragana", "katakana"], 1.0),
        ("답은 넷이다", "hangul", 1.0),
        ("ответ 4 + 4 = 8, итого $\\frac{1}{2}$ x = 3", "cyrillic", 1.0),
        ("ответ `print(x)`\n```python\nfor word in words: print(word)\n```\nготов", "cyrillic", 1.0),
        ("ответ \\text{the answer}", "cyrillic", 1 / 3),
        ("<think>ответ</think> <answer>да, вот</answer>", "cyrillic", 1.0),
        ("ответ ```and all the rest", "cyrillic", 1 / 5),
    ],
)
def test_the_share_of_words_in_the_script(text: str, script: Any, share: float) -> None:
    assert values("language", text, script=script) == [pytest.approx(share)]


def test_a_completion_without_words_has_no_language() -> None:
    for text in ("", "2 + 2 = 4", "x = y", "```\nall of it\n```", "\\alpha", "𝐚𝐛𝐜"):
        (score,) = scored("language", text, script="latin")
        assert (score.value, score.status) == (0.0, "unparseable")
    with pytest.raises(ParamsError, match=r"'latn' is not a supported script, .* Did you mean 'latin'"):
        summed("language", script="latn")
    with pytest.raises(ParamsError, match="script is empty"):
        summed("language", script=[])


# --- length


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"limit": 8}, [1 - 2 / 8, 1 - 4 / 8, 0.0, 0.0]),
        ({"limit": 8, "shape": "cosine"}, [0.5 + 0.5**1.5, 0.5, 0.0, 0.0]),
        ({"limit": 8, "shape": "step"}, [1.0, 1.0, 1.0, 0.0]),
        ({"target": 4}, [0.5, 1.0, 0.0, 0.0]),
        ({"target": 4, "width": 8}, [0.75, 1.0, 0.5, 0.25]),
        ({"target": 4, "width": 4, "shape": "cosine"}, [0.5, 1.0, 0.0, 0.0]),
        ({"target": 4, "width": 2, "shape": "step"}, [1.0, 1.0, 0.0, 0.0]),
    ],
)
def test_the_shapes_of_length(options: dict[str, Any], expected: list[float]) -> None:
    lengths = [2, 4, 8, 10]
    assert values("length", *map(of_tokens, lengths), **options) == pytest.approx(expected)
    in_words = [" ".join(["word,"] * count) for count in lengths]
    assert values("length", *in_words, unit="words", **options) == pytest.approx(expected)


def test_only_the_last_completion_of_an_episode_is_counted() -> None:
    assert values("length", of_tokens(4, before=7), target=4) == [1.0]
    assert values("overlong", of_tokens(8, before=7), of_tokens(10, before=7), max_tokens=10) == [0.0, -1.0]


@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from(["linear", "cosine", "step"]))
def test_a_shorter_completion_below_a_limit_is_never_worse(limit: int, count: int, shape: str) -> None:
    few, more = values("length", of_tokens(count), of_tokens(count + 1), limit=limit, shape=shape)
    assert 0.0 <= more <= few <= 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either target or limit"),
        ({"target": 4, "limit": 8}, "give either target or limit"),
        ({"limit": 8, "width": 2}, "width only works with target"),
    ],
)
def test_a_length_needs_one_aim(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        summed("length", **options)


def test_tokens_that_are_not_known_are_no_score() -> None:
    bare = replace(rollout_of("text"), row=TokenRow([], []), logps=[])
    for name, options in {"length": {"limit": 4}, "overlong": {}, "repetition": {"unit": "tokens"}}.items():
        assert "error: its tokens are not known" in failure(name, bare, max_tokens=10, **options)
    assert "sampling.max_tokens" in failure("overlong", of_tokens(3))


# --- overlong


def test_soft_overlong_is_the_function_of_the_paper() -> None:
    """DAPO, equation 13, with its lengths: 16,384 expected, 4,096 of cache, 20,480 at most."""
    longest, cache = 20_480, 4_096
    for length in (0, 1, 16_383, 16_384, 16_385, 18_432, 20_479, 20_480, 20_481, 30_000):
        if length <= longest - cache:
            wanted = 0.0
        elif length <= longest:
            wanted = ((longest - cache) - length) / cache
        else:
            wanted = -1.0
        assert soft_overlong(length, longest, 0.2) == wanted
    assert values("overlong", of_tokens(16_384), of_tokens(18_432), of_tokens(20_480), max_tokens=longest) == [
        *(0.0, -0.5, -1.0)
    ]


@given(st.integers(0, 3000), st.integers(1, 2000), st.floats(0.01, 0.99))
def test_soft_overlong_falls_from_0_to_minus_1(length: int, longest: int, fraction: float) -> None:
    now, later = (soft_overlong(one, longest, fraction) for one in (length, length + 1))
    assert -1.0 <= later <= now <= 0.0
    assert soft_overlong(0, longest, fraction) == 0.0 and soft_overlong(longest, longest, fraction) == -1.0


def test_an_old_number_of_tokens_says_how_to_convert_it() -> None:
    run = {"algorithm": "dapo", "start": "sft/main", "data": "a/prompts", "reward_model": "none", "corpus": "none"}
    assert check(PolicyRun, run | {"overlong": 0.2}, where="online.runs.a").overlong == 0.2
    for old in (1, 4, 4096):
        with pytest.raises(
            ParamsError, match=rf"runs\.a\.overlong: {old} is a number of tokens.*Write {old} / max_tokens"
        ):
            check(PolicyRun, run | {"overlong": old}, where="online.runs.a")


# --- repetition


@pytest.mark.slow
@given(st.lists(st.integers(0, 10**6), unique=True), st.integers(1, 5))
def test_distinct_words_are_no_repetition(numbers: list[int], n: int) -> None:
    assert values("repetition", " ".join(f"w{one}" for one in numbers), n=n) == [0.0]


@pytest.mark.slow
@given(st.text(alphabet="ab c,", max_size=60), st.integers(1, 4), st.floats(0, 0.9))
def test_repetition_is_between_minus_1_and_0_and_falls_when_the_text_is_said_again(
    text: str, n: int, limit: float
) -> None:
    once, twice = values("repetition", text, f"{text} {text}", n=n, limit=limit)
    assert -1.0 <= twice <= once <= 0.0


def test_repetition_by_hand() -> None:
    # the cat the cat the cat: pairs tc ct tc ct tc, 2 distinct of 5
    text = "the cat The cat the cat"
    assert values("repetition", text, n=2) == [pytest.approx(-3 / 5)]
    assert values("repetition", text, n=2, limit=0.2) == [pytest.approx(-(3 / 5 - 1 / 5) / (4 / 5))]
    assert values("repetition", text, n=2, limit=0.6) == [0.0]
    assert values("repetition", "!!!!!", "好好好好好", "one two", n=2) == [
        pytest.approx(-3 / 4),
        pytest.approx(-3 / 4),
        0.0,
    ]
    same = replace(rollout_of("text"), row=TokenRow([1], [7, 7, 7, 7]))
    assert values("repetition", same, n=2, unit="tokens") == [pytest.approx(-2 / 3)]


def test_form_and_length_do_not_decide_what_can_be_judged() -> None:
    shaping = {name for name, reward in REWARDS.items() if reward.shaping}
    assert {"format", "language", "length", "overlong", "regex", "repetition"} <= shaping
    assert not shaping & {"correct", "json_schema", "model"}


LONG = ["<think>", "```json\n", "```", "`", "`a\n", "\\begin{", "</a", "a'", "\n", "{", "a ", "1=1 "]


@pytest.mark.slow
@pytest.mark.parametrize("piece", LONG)
def test_long_texts_are_judged_in_time(piece: str) -> None:
    """100,000 characters, also such as make a careless pattern take quadratic time."""
    began, texts = time.process_time(), [piece * (100_000 // len(piece)), "```json" + piece * (100_000 // len(piece))]
    for name, options in {
        "format": {"tags": ["think", "answer"]},
        "json_schema": {"schema": {}, "find": "block"},
        "language": {"script": "latin"},
        "length": {"limit": 9, "unit": "words"},
        "repetition": {},
    }.items():
        scored(name, *texts, **options)
    assert time.process_time() - began < 5

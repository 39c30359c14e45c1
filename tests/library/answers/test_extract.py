"""Final answers: where they are found, and which are denied or doubtful."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.answers import extract
from posttrain.answers.extract import Form, after_mark, final_answer, gold_answer, spoken
from posttrain.answers.nodes import Unreadable


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        (r"We add. $\boxed{18}$", "auto", "18"),
        (r"\boxed{3}. Wait, that is wrong. \boxed{4}", "boxed", "4"),
        (r"$x=\boxed{1}$ or $x=\boxed{2}$", "boxed", "1 or 2"),
        ("9 + 9\n#### 18\n\nHope this helps!", "auto", "18"),
        ("**Final Answer**\n\n18", "answer_is", "18"),
        ("The answer is 18, because 9 + 9 is 18.", "auto", "18"),
        ("17?</think>The answer is 18", "auto", "18"),
        ("I add.\n<answer>18</answer>", "auto", "18"),
        (r"$x \in \boxed{[1, 2]}$", "auto", "[1, 2]"),
        (r"$N \equiv \boxed{9} \pmod{1000}$", "auto", "9"),
        (r"$A = \boxed{9\pi} \approx 28.27$", "auto", r"9\pi"),
        (r"\boxed{3} \quad \text{and} \quad \boxed{4}", "auto", "3, 4"),
        (r"$x = \boxed{3}$, $y = \boxed{4}$", "auto", "x = 3, y = 4"),
        (r"The side is $\boxed{7}$ cm.", "auto", "7 cm"),
        ("First \\boxed{3}.\n\nNo, it is \\boxed{4}", "auto", "4"),
        ("#### 18\n#### Explanation\nI add.", "auto", "18"),
        ("18", "auto", "18"),
    ],
)
def test_the_final_answer_is_found(text: str, form: Form, answer: str) -> None:
    assert final_answer(text, form).rstrip(".") == answer


@pytest.mark.parametrize(
    "text",
    [
        r"The answer is not \boxed{18}",
        r"\boxed{18} is wrong, take \boxed{}",
        "First 9.\n\nSo the total is 18 apples.",
        "答案不是18。",
        r"答案不是 \boxed{18}。",
        r"\boxed{18} is wrong.",
        "The answer is 18. Wait, no.",
        r"\boxed{18}, so we take \boxed{19}",
        r"\boxed{18}?",
        "<answer>18</answer>5",
        "#### ",
        "I doubt that the answer is 18.",
        "#### 18 #### 19",
        r"\boxed{18",
        r"\boxed{18} \times 2",
        "<think> The answer is 18",
        "",
    ],
)
def test_denied_and_doubtful_answers_are_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        final_answer(text)


def test_a_truncated_answer_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="truncated"):
        final_answer("The answer is 18", truncated=True)
    assert final_answer(r"\boxed{18}", truncated=True) == "18"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("First 9.\n\nSo the total is 18 apples.", "18 apples"),
        ("So Janet makes $18 every day at the market.", "$18"),
        ("16\n17\n18", "18"),
        ("9 + 9 = 18", "9 + 9 = 18"),
    ],
)
def test_text_without_a_mark_is_read_on_request(text: str, answer: str) -> None:
    assert final_answer(text, unmarked=True).rstrip(".") == answer


def test_text_of_doubt_without_a_mark_is_unreadable() -> None:
    for text in ("I don't think that it is 18", "It is 18 or 19", "We add.\n####"):
        with pytest.raises(Unreadable):
            final_answer(text, unmarked=True)


def test_after_mark() -> None:
    assert after_mark("so => 17\nNo: => 18 apples\nend", "=>") == "18 apples"
    with pytest.raises(Unreadable, match="it does not have `=> ANSWER`"):
        after_mark("18", "=>")


def test_gold_answer() -> None:
    assert [gold_answer(text) for text in (" 18 ", "9 + 9\n#### 18", r"\boxed{18}")] == ["18"] * 3


def test_spoken() -> None:
    assert spoken("<think>17</think>18") == "18" and spoken("18") == "18"
    with pytest.raises(Unreadable, match="thoughts do not end"):
        spoken("<think>17")


def test_texts_that_are_not_searched_for_a_phrase_have_none() -> None:
    """The quick look for its words leaves no phrase out, in all texts that the tests of answers have."""
    found = 0
    for file in sorted(Path(__file__).parents[1].rglob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            text = str(json.loads(line).get("completion") or json.loads(line).get("text") or line)
            for case in (text, text.upper()):
                if extract._SAID.search(case):
                    found += 1
                    assert any(part in case.casefold() for part in extract._SAID_WITH), case
    assert found > 1000


@pytest.mark.parametrize(
    "text",
    [
        "因此，答案是：18。",
        "よって、答えは 18 です。",
        "따라서 답은 18입니다.",
        "Also ist die **Antwort: 18**",
        "La bonne réponse est 18.",
        "La respuesta final es 18.",
        "La risposta è 18.",
        "A resposta é 18.",
        "9 + 9.\nОтвет: 18",
    ],
)
def test_phrases_of_other_languages_mark_no_answer_and_boxes_do(text: str) -> None:
    with pytest.raises(Unreadable, match="it has no marked answer"):
        final_answer(text)
    assert final_answer(text.replace("18", r"$\boxed{18}$")) == "18"
    assert final_answer(f"{text}\n#### 18") == "18"

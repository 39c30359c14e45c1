"""Special tokens in a policy's text are no tokens of another server."""

from __future__ import annotations

import pytest

from posttrain.rewards.chat_tokens import without_chat_tokens


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("4<|im_end|>\n<|im_start|>system", "4< |im_end|>\n< |im_start|>system"),
        ("<|eot_id|><|start_header_id|>", "< |eot_id|>< |start_header_id|>"),
        ("</s><s>", "< /s>< s>"),
        ("<end_of_turn>", "< end_of_turn>"),
        ("[INST] x [/INST]", "[ INST] x [ /INST]"),
        ("<<SYS>>", "< <SYS>>"),
        ("<｜end▁of▁sentence｜>", "< ｜end▁of▁sentence｜>"),
        ("a < b | c > d, <b>, <|, x[INSTANCE]", "a < b | c > d, <b>, <|, x[INSTANCE]"),
    ],
)
def test_special_tokens_are_taken_apart(text: str, sent: str) -> None:
    assert without_chat_tokens(text) == sent

"""Conversations as token ids, with a mask of the tokens that the model is to learn.

Prompts and completions are encoded apart, as the sampler sees them, so that training and sampling agree token by
token. Text that looks like a special token stays text: it cannot forge a turn or an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from posttrain.errors import DataError
from posttrain.text.stops import Stops

Message = Mapping[str, str]
TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""A template is a program, which may fail in any of a program's ways."""
_MARK = "\ue000{}\ue001"
"""A placeholder from Unicode's private use area that stands for content while the template is rendered."""


@dataclass(frozen=True)
class Encoded:
    """One conversation: the prompt's ids and those of the answer, stop token included."""

    prompt: list[int]
    completion: list[int]


class ChatText:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, where: str = "tokenizer", ends: Sequence[int] = ()) -> None:
        """`ends`: tokens that end a completion beside the tokenizer's own (models/store.py: `load_ends`)."""
        self.tokenizer = tokenizer
        self._where = where
        self._specials = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        if tokenizer.eos_token_id is None:
            raise DataError(what="the tokenizer has no end token", where=where, mend="Set eos_token in its config")
        if not tokenizer.chat_template:
            raise DataError(
                what="the tokenizer has no chat template", where=where, mend="Use an instruct model or add a template"
            )
        self.stop: int = tokenizer.eos_token_id
        self.stops = Stops((self.stop, *(end for end in ends if end != self.stop)), self._text)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids that the model is asked to go on from."""
        return self._pieces(messages, generation=True, skip=0)

    def exchange(self, prompt: Sequence[Message], answer: Sequence[Message]) -> Encoded:
        """A prompt and its answer (one assistant turn); the answer ends with the stop token."""
        head, _ = self._rendered(prompt, generation=True)
        text, _ = self._rendered([*prompt, *answer], generation=False)
        if not text.startswith(head):
            raise DataError(
                what="the chat template changes earlier text when a turn is added",
                where=self._where,
                mend="Use a template whose conversation begins with its own prompt",
            )
        completion = self._pieces([*prompt, *answer], generation=False, skip=len(head))
        return Encoded(self.prompt(prompt), self._until_stop(completion))

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Documents of plain text as ids, markup in them included as text."""
        ids: list[list[int]] = self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False
        )["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion, without its stop token."""
        return self._text(ids[:-1] if ids and ids[-1] in self.stops.tokens else ids)

    def _text(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _until_stop(self, ids: list[int]) -> list[int]:
        if self.stop not in ids:
            raise DataError(
                what="the chat template puts no stop token after the answer",
                where=self._where,
                mend=f"End the assistant's turn with {self.tokenizer.eos_token} in the template",
            )
        return ids[: ids.index(self.stop) + 1]

    def _pieces(self, messages: Sequence[Message], *, generation: bool, skip: int) -> list[int]:
        """The ids of the rendered text from character `skip` on, content apart from markup where it must be."""
        text, spans = self._rendered(messages, generation=generation)
        forged = [span for span in spans if any(special in text[slice(*span)] for special in self._specials)]
        ids: list[int] = []
        at = skip
        for start, end in forged:
            if end <= skip:
                continue
            ids += self._markup(text[at : max(start, at)])
            ids += self.plain([text[max(start, at) : end]])[0]
            at = end
        return ids + self._markup(text[at:])

    def _markup(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return ids

    def _rendered(self, messages: Sequence[Message], *, generation: bool) -> tuple[str, list[tuple[int, int]]]:
        """The template's text and where each content that looks like markup lies in it."""
        turns = [dict(message) for message in messages]
        try:
            text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generation)
            if not any(special in turn["content"] for turn in turns for special in self._specials):
                return text, []
            marked = [{**turn, "content": _MARK.format(i)} for i, turn in enumerate(turns)]
            frame: str = self.tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=generation)
        except TEMPLATE_ERRORS as error:
            what = f"the chat template fails ({type(error).__name__}: {error!s:.200})"
            raise DataError(what=what, where=self._where, mend="Mend the template, or the data") from error
        filled, spans, at = "", [], 0
        for i, turn in enumerate(turns):
            place = frame.find(_MARK.format(i), at)
            if place < 0:
                continue
            filled += frame[at:place]
            spans.append((len(filled), len(filled) + len(turn["content"])))
            filled += turn["content"]
            at = place + len(_MARK.format(i))
        return filled + frame[at:], spans

"""Conversations as rows of token ids.

Prompts and completions are encoded apart, as the sampler sees them, so that training and sampling agree token by
token. Text that looks like a special token stays text: it cannot forge a turn or an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator

from posttrain.errors import DataError
from posttrain.measure.record import note
from posttrain.rollout import TokenRow
from posttrain.text.templates import PROCESS, Asked, RenderError, Template

Message = Mapping[str, str]
DATE = "2024-07-26"
"""What a template that asks for today's date gets: the same ids every day."""
_MARK = "\ue000{}\ue001"
"""A placeholder from Unicode's private use area that stands for content while the template is rendered."""
_PLACEHOLDER = "\ue002\ue003\ue002"
"""Stands for what a policy wrote, whose tokens are known."""
_ANSWER: Message = {"role": "assistant", "content": ""}


def _iso(value: Any) -> Any:
    if isinstance(value, date):
        raise ValueError(f'DVC does not read dates of YAML. Put it in quotes: "{value}"')  # noqa: TRY004
    if isinstance(value, str):
        date.fromisoformat(value)
    return value


TemplateDate = Annotated[str, BeforeValidator(_iso)]
"""A date such as "2024-07-26"."""


class ChatText:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, where: str = "tokenizer", ends: Sequence[int] = (), today: str = DATE) -> None:
        """`ends`: tokens that end a completion, in addition to the tokenizer's own (models/store.py: `load_ends`)."""
        self.tokenizer = tokenizer
        self._where = where
        self.today = today
        self._specials = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        if tokenizer.eos_token_id is None:
            raise DataError(what="the tokenizer has no end token", where=where, fix="Set eos_token in its config")
        if not tokenizer.chat_template:
            raise DataError(
                what="the tokenizer has no chat template", where=where, fix="Use an instruct model or add a template"
            )
        if isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
            what = f"the tokenizer has several chat templates ({', '.join(tokenizer.chat_template)}) and no default"
            raise DataError(what=what, where=where, fix="Name one of them 'default'")
        self._template = Template(tokenizer.get_chat_template(), tokenizer.special_tokens_map, today)
        self._checked: set[tuple[str, ...]] = set()
        self._ahead: dict[str, list[int]] = {}
        self.stop: int = tokenizer.eos_token_id
        self.stops = Stops((self.stop, *(end for end in ends if end != self.stop)), self._text)
        PROCESS.start()  # while the model is loaded

    def prompts(self, conversations: Sequence[Sequence[Message]]) -> list[list[int]]:
        """The ids that the model is asked to continue, of each conversation."""
        rendered = self._rendered([(messages, True) for messages in conversations])
        for messages in conversations:
            self._check([*messages, _ANSWER])
        return [self._pieces(*one) for one in rendered]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The same for one conversation."""
        return self.prompts([messages])[0]

    def exchanges(self, pairs: Sequence[tuple[Sequence[Message], Sequence[Message]]]) -> list[TokenRow]:
        """Prompts and their answers (one assistant turn each); an answer ends with the stop token."""
        whole = [[*prompt, *answer] for prompt, answer in pairs]
        opened = self._rendered([(prompt, True) for prompt, _ in pairs])
        closed = self._rendered([(messages, False) for messages in whole])
        encoded = []
        tails = [text[len(head) :] for (head, _), (text, _) in zip(opened, closed, strict=True)]
        self._encode_ahead([head for head, _ in opened] + tails)
        for messages, (head, asked), (text, spans) in zip(whole, opened, closed, strict=True):
            self._check(messages)
            if not text.startswith(head):
                fix = "Use a template that only adds text at the end"
                raise self._refusal("changes earlier text when a turn is added to", messages, fix)
            completion = self._pieces(text, spans, skip=len(head))
            encoded.append(TokenRow(self._pieces(head, asked), self._until_stop(completion)))
        return encoded

    def exchange(self, prompt: Sequence[Message], answer: Sequence[Message]) -> TokenRow:
        """The same for one conversation."""
        return self.exchanges([(prompt, answer)])[0]

    def reply(self, messages: Sequence[Message], reply: Sequence[Message], last: int) -> list[int]:
        """The ids between the last assistant turn, whose last token is `last`, and the policy's next answer.

        They begin with the end of that turn where `last` is no stop token, as after a stop string.
        """
        turns = [*messages[:-1], {**messages[-1], "content": _PLACEHOLDER}, *reply]
        ((text, spans),) = self._rendered([(turns, True)])
        self._check([*turns, _ANSWER])
        place = text.rfind(_PLACEHOLDER) + len(_PLACEHOLDER)
        ids = self._pieces(text, spans, skip=place)
        end = next((i + 1 for i, token in enumerate(ids) if token in self.stops.tokens), None)
        if end is None:
            fix = f"End the assistant's turn with {self.tokenizer.eos_token} in the template"
            raise self._refusal("puts no stop token after the answer in", [*messages, *reply], fix)
        return ids[end:] if last in self.stops.tokens else ids

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Documents of plain text as ids, markup in them included as text."""
        ids: list[list[int]] = self._encoded(list(texts), split_special_tokens=True)
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
                fix=f"End the assistant's turn with {self.tokenizer.eos_token} in the template",
            )
        return ids[: ids.index(self.stop) + 1]

    def _pieces(self, text: str, spans: Sequence[tuple[int, int]], skip: int = 0) -> list[int]:
        """The ids of the rendered text from character `skip` on, content apart from markup where it must be."""
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
        ids: list[int] = self._ahead.get(text) or self._encoded(text)
        return ids

    def _encode_ahead(self, texts: list[str]) -> None:
        """Encode texts that are asked for soon, together: the tokenizer uses several cores for many texts."""
        self._ahead = dict(zip(texts, self._encoded(texts), strict=True)) if texts else {}

    def _encoded(self, text: str | list[str], **how: bool) -> Any:
        try:
            return self.tokenizer(text, add_special_tokens=False, return_attention_mask=False, **how)["input_ids"]
        except BaseException as error:  # a panic of tokenizers is no Exception, and its class cannot be imported
            if type(error).__name__ != "PanicException":
                raise
            what = f"the tokenizer fails on a text ({' '.join(str(error).split())[:200]})"
            fix = "Simplify the patterns in its tokenizer.json, or shorten the text"
            raise DataError(what=what, where=self._where, fix=fix) from error

    def _rendered(self, asked: Sequence[Asked]) -> list[tuple[str, list[tuple[int, int]]]]:
        """The template's text of each conversation, and where contents that look like markup lie in it."""
        texts = self._render(asked, asked)
        odd = [i for i, (messages, _) in enumerate(asked) if self._looks_like_markup(messages)]
        shown = [asked[i] for i in odd]
        frames = dict(zip(odd, self._render([(_marked(turns), opened) for turns, opened in shown], shown), strict=True))
        return [self._filled(frames[i], asked[i][0]) if i in frames else (text, []) for i, text in enumerate(texts)]

    def _looks_like_markup(self, messages: Sequence[Message]) -> bool:
        return any(special in turn["content"] for turn in messages for special in self._specials)

    def _filled(self, frame: str, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The text of the marked conversation with the contents in their places, and those places."""
        filled, spans, at = "", [], 0
        for i, (turn, place) in enumerate(zip(messages, self._places(frame, messages), strict=True)):
            filled += frame[at:place]
            spans.append((len(filled), len(filled) + len(turn["content"])))
            filled += turn["content"]
            at = place + len(_MARK.format(i))
        return filled + frame[at:], spans

    def _render(self, asked: Sequence[Asked], shown: Sequence[Asked]) -> list[str]:
        """The conversations by the template; an error shows the one in the same place of `shown`."""
        texts: list[str] = []
        try:
            for found in self._template.render(asked):
                texts.append(found.text)
                if found.dated:
                    note(date=self._template.date)
        except RenderError as error:
            fix = "Change the conversation, or the template"
            raise self._refusal("fails on", shown[len(texts)][0], fix, f": {error}") from error
        return texts

    def _check(self, messages: Sequence[Message]) -> None:
        """Refuse a template that loses or moves turns, or opens no answer; once for each sequence of roles."""
        roles = tuple(turn["role"] for turn in messages)
        if roles in self._checked:
            return
        marked = _marked(messages)
        frame = self._render([(marked, False)], [(messages, False)])[0]
        start = self._places(frame, messages)[-1]
        if len(messages) > 1:
            before = (marked[:-1], False), (marked[:-1], True)
            closed, opened = self._render(before, [(messages, False)] * 2)
            header = frame[len(closed) : start]
            if closed == opened and frame.startswith(closed) and header.strip():
                fix = f"Let it write {header!r} after the last turn where add_generation_prompt is true"
                raise self._refusal("ignores add_generation_prompt and so opens no answer to", messages[:-1], fix)
        self._checked.add(roles)

    def _places(self, frame: str, messages: Sequence[Message]) -> list[int]:
        """Where the mark of each turn lies in the text that the template made of the marks."""
        places = [frame.find(_MARK.format(i)) for i in range(len(messages))]
        fix = "Use a template that takes these turns, or change the conversation"
        if -1 in places:
            lost = places.index(-1)
            raise self._refusal(f"leaves out turn {lost + 1} ({messages[lost]['role']}) of", messages, fix)
        if places != sorted(places):
            raise self._refusal("changes the order of", messages, fix)
        return places

    def _refusal(self, what: str, messages: Sequence[Message], fix: str, why: str = "") -> DataError:
        """The error for what the template does to a conversation, which is shown by its roles and its beginning."""
        roles = ", ".join(turn["role"] for turn in messages) or "no"
        begins = f", which begins {messages[0]['content'][:60]!r}" if messages else ""
        return DataError(
            what=f"the chat template {what} a conversation of {roles} turns{begins}{why}", where=self._where, fix=fix
        )


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The turns with a mark each in place of the content."""
    return [{**turn, "content": _MARK.format(i)} for i, turn in enumerate(messages)]


Decode = Callable[[Sequence[int]], str]

MARGIN = 8
"""Tokens before the longest match: a cut character, or tokens without text of their own."""


@dataclass(frozen=True)
class Stops:
    """The tokens that end a completion, and how tokens become the text that stop strings are looked for in."""

    tokens: tuple[int, ...]
    decode: Decode


class StopStrings:
    """Looks for strings at the end of a growing text, in as few tokens as can hold one."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        self._strings, self._decode = tuple(strings), decode
        self._tail = MARGIN + max((len(one.encode()) for one in strings), default=0)

    def end(self, ids: Sequence[int], new: int) -> int | None:
        """How many ids there are once a string is complete; all but the last `new` have been looked at."""
        if not self._strings or not self._within(ids, len(ids) - new, len(ids)):
            return None
        known = len(ids) - new
        return next((end for end in range(known + 1, len(ids) + 1) if self._within(ids, end - 1, end)), None)

    def _within(self, ids: Sequence[int], known: int, end: int) -> bool:
        text = self._decode(ids[max(known - self._tail, 0) : end])
        return any(one in text for one in self._strings)

"""Conversations as rows of token ids.

Prompts and completions are encoded separately, as in sampling, so that training and sampling use the same tokens. Text
that looks like a special token stays text and cannot forge a turn or an end.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from posttrain.errors import DataError, shortened
from posttrain.rollout import TokenRow
from posttrain.text.chat_template import ChatTemplate, Conversation, Message, RenderedConversation
from posttrain.text.stops import Stops
from posttrain.text.templates import PROCESS, RenderRequest, Template, reads, variables_fault

Trained = Literal["all", "last"]
DATE = "2024-07-26"
"""The date for templates that ask for today's, so that ids are the same every day."""
_PLACEHOLDER = "\ue002\ue003\ue002"
"""A placeholder for the policy's turn, whose tokens are known."""
_ANSWER: Message = {"role": "assistant", "content": "?"}


def _iso(value: Any) -> Any:
    if isinstance(value, date):
        raise ValueError(f'DVC does not read dates of YAML. Put it in quotes: "{value}"')  # noqa: TRY004
    if isinstance(value, str):
        date.fromisoformat(value)
    return value


TemplateDate = Annotated[str, BeforeValidator(_iso)]
"""A date such as "2024-07-26"."""


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    if fault := variables_fault(value):
        raise ValueError(fault)
    return value


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_variables)]
"""Variables for a chat template, e.g. {enable_thinking: false}."""


def check_read(template: str, variables: Mapping[str, Any], where: str) -> None:
    """Reject variables that the template does not use."""
    unread = [name for name in variables if not reads(template, name)]
    if unread:
        what = f"the chat template does not use {', '.join(unread)}"
        raise DataError(what=what, where=where, fix="Remove it from `template`, or fix its name")


class ChatText:
    """A tokenizer and its chat template."""

    def __init__(
        self,
        tokenizer: Any,
        where: str = "tokenizer",
        stop_tokens: Sequence[int] = (),
        today: str = DATE,
        *,
        context: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """`stop_tokens`: additional tokens that end a completion (models/store.py: `load_stop_tokens`).

        `context`: the most tokens of a row; None: no limit. `variables`: template variables of every conversation.
        """
        self.tokenizer = tokenizer
        self._where = where
        self.today, self.context, self.variables = today, context, dict(variables or {})
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        if tokenizer.eos_token_id is None:
            raise DataError(what="the tokenizer has no end token", where=where, fix="Set eos_token in its config")
        if not tokenizer.chat_template:
            raise DataError(
                what="the tokenizer has no chat template", where=where, fix="Use an instruct model or add a template"
            )
        if isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
            what = f"the tokenizer has several chat templates ({', '.join(tokenizer.chat_template)}) and no default"
            raise DataError(what=what, where=where, fix="Rename one of them to 'default'")
        source = tokenizer.get_chat_template()
        check_read(source, self.variables, where)
        template = Template(source, tokenizer.special_tokens_map, today, self.variables)
        self._specials = sorted(special, key=len, reverse=True)
        self._template = ChatTemplate(template, self._specials, where)
        self._encoded = threading.local()  # texts that this thread has encoded ahead
        self._tokenizing = threading.Lock()  # a call sets options of the tokenizer
        self.stop: int = tokenizer.eos_token_id
        self.stops = Stops((self.stop, *(token for token in stop_tokens if token != self.stop)), self._text)
        PROCESS.start()  # in the background, while the model loads

    @property
    def vocabulary(self) -> str:
        """Return a digest of the tokens and their ids."""
        ids = json.dumps(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(ids.encode()).hexdigest()

    def prompts(self, conversations: Sequence[Sequence[Message] | Conversation]) -> list[list[int]]:
        """Return each conversation's token ids up to the start of the next answer."""
        asked = list(map(_conversation, conversations))
        rendered = self._template.write([talk.request(opened=True) for talk in asked])
        for talk in asked:
            self._template.check(replace(talk, messages=[*talk.messages, _ANSWER]))
        return [self._encode_part(conversation) for conversation in rendered]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of one conversation up to the start of the next answer."""
        return self.prompts([messages])[0]

    def conversations(self, conversations: Sequence[Conversation], turns: Trained) -> list[TokenRow]:
        """Return the rows of `split_conversations` as one list. With `last`, each conversation has one row."""
        return [row for rows in self.split_conversations(conversations, turns) for row in rows]

    def split_conversations(self, conversations: Sequence[Conversation], turns: Trained) -> list[list[TokenRow]]:
        """Return rows of conversations that end with the assistant. All its turns, or the last, are trained.

        A turn's trained tokens begin after the text that the template writes to open it, and include the end token. A
        conversation is one row, unless the template changes a turn when others follow. For example, Qwen3's removes
        earlier thoughts. Then each row ends where the next turn would change it. `{% generation %}` marks turns in one
        row.
        """
        trained = [self._trained(conversation, turns) for conversation in conversations]
        pairs = [
            (conversation, index) for conversation, some in zip(conversations, trained, strict=True) for index in some
        ]
        opened = self._template.write([conversation.request(index, opened=True) for conversation, index in pairs])
        closed = self._template.write([conversation.request(index + 1) for conversation, index in pairs])
        for (conversation, index), ended in zip(pairs, closed, strict=True):
            self._template.check_thought(conversation, index, ended.text)
        rendered = iter(list(zip(opened, closed, strict=True)))
        turns_of = [
            (conversation, [next(rendered) for _ in some])
            for conversation, some in zip(conversations, trained, strict=True)
        ]
        heads = [some[0][0].text for _, some in turns_of]
        self._encode_ahead(heads + [whole.text[len(head.text) :] for _, some in turns_of for head, whole in some])
        rows = []
        for talk, some in turns_of:
            self._template.check(talk)
            rows.append(self._rows(talk, some))
        return rows

    def _trained(self, conversation: Conversation, turns: Trained) -> list[int]:
        """Return the indices of the trained turns."""
        places = _assistant(conversation.messages) if turns == "all" else [len(conversation.messages) - 1]
        trained = [place for place in places if place not in conversation.untrained]
        if not trained:
            last = "the last turn has" if turns == "last" else "all turns have"
            what = f"{last} weight 0, so nothing can be trained ({conversation.name or 'a conversation'})"
            raise DataError(
                what=what, where=self._where, fix="Drop the row, or set turns: all if other turns are trained"
            )
        return trained

    def exchanges(self, pairs: Sequence[tuple[Sequence[Message], Sequence[Message]]]) -> list[TokenRow]:
        """Return prompts with answers (one assistant turn each). An answer ends with the stop token."""
        return self.conversations([Conversation([*prompt, *answer]) for prompt, answer in pairs], "last")

    def whole(self, conversations: Sequence[Sequence[Message] | Conversation]) -> list[list[int]]:
        """Return the ids of each whole conversation, as encoded by transformers' `apply_chat_template`."""
        talks = list(map(_conversation, conversations))
        rendered = self._template.write([talk.request() for talk in talks])
        for talk in talks:
            self._template.check_written(talk)
        return [self._encode_part(conversation) for conversation in rendered]

    def ending(self, messages: Sequence[Message]) -> str | None:
        """Return the special token that the template writes after the last turn; None if there is none."""
        (rendered,) = self._template.write([RenderRequest(messages, False)])
        after = rendered.text.rpartition(messages[-1]["content"])[2].lstrip()
        return next((special for special in self._specials if after.startswith(special)), None)

    def same_as(self, other: ChatText) -> bool:
        """Tell whether both templates encode every conversation to the same tokens."""
        return self._identity == other._identity

    @property
    def _identity(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer
        vocabulary = tokenizer.backend_tokenizer.to_str()
        return vocabulary, tokenizer.get_chat_template(), tokenizer.special_tokens_map, self.today, self.variables

    def reply(
        self,
        messages: Sequence[Message],
        reply: Sequence[Message],
        last: int,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids between the last assistant turn, which ends with `last`, and the policy's next answer.

        If `last` is not a stop token, e.g. after a stop string, they begin with the end of that turn.
        """
        turns = [*messages[:-1], {**messages[-1], "content": _PLACEHOLDER}, *reply]
        talk = Conversation(turns, variables=variables or {})
        (rendered,) = self._template.write([talk.request(opened=True)])
        self._template.check(replace(talk, messages=[*turns, _ANSWER]))
        ids = self._encode_part(rendered, rendered.text.rfind(_PLACEHOLDER) + len(_PLACEHOLDER))
        end = next((i + 1 for i, token in enumerate(ids) if token in self.stops.tokens), None)
        if end is None:
            fix = f"End the assistant's turn with {self.tokenizer.eos_token} in the template"
            raise self._template.refusal("does not put a stop token after the answer in", [*messages, *reply], fix)
        return ids[end:] if last in self.stops.tokens else ids

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return documents of plain text as ids. Markup in them is encoded as text."""
        ids: list[list[int]] = self._tokenize(list(texts), split_special_tokens=True)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a completion, without its stop token."""
        return self._text(ids[:-1] if ids and ids[-1] in self.stops.tokens else ids)

    def _text(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _rows(
        self, conversation: Conversation, turns: Sequence[tuple[RenderedConversation, RenderedConversation]]
    ) -> list[TokenRow]:
        """Return the rows of a conversation. `turns`: each trained turn's text up to its start and up to its end."""
        whole = turns[-1][1]
        if len(turns) > 1 and whole.blocks:
            return [self._marked_row(conversation, turns)]
        for head, closed in turns:
            if not closed.text.startswith(head.text):
                raise self._unlike_prompt(conversation, head.text, closed.text)
        trained = [self._until_stop(self._encode_part(ended, len(head.text))) for head, ended in turns]
        rows: list[TokenRow] = []
        first = 0
        while first < len(turns):  # a row has as many turns as stay as they were
            ends = range(len(turns), first, -1)
            joined = ((end, self._joined(turns[first:end], trained[first:end])) for end in ends)
            first, row = next((end, row) for end, row in joined if row is not None)
            rows.append(row)
        return rows

    def _unlike_prompt(self, conversation: Conversation, opened: str, closed: str) -> DataError:
        """Return the error for an answer that does not begin like the policy's."""
        at = next((place for place in range(len(opened)) if opened[place] != closed[place : place + 1]), 0)
        why = (
            f": it opens an answer to generate with {opened[at:][:60]!r}, but this conversation has "
            f"{closed[at:][:60]!r}"
        )
        fix = "Set `template`, or the row's chat_template_kwargs, so that both agree, or use another template"
        what = "changes earlier text when a turn is added to"
        return self._template.refusal(what, conversation.messages, fix, why, conversation.name)

    def _marked_row(
        self, conversation: Conversation, turns: Sequence[tuple[RenderedConversation, RenderedConversation]]
    ) -> TokenRow:
        """Return the row of a conversation in which the template marks the assistant's turns."""
        whole = turns[-1][1]
        places = [place for place in _assistant(conversation.messages) if place not in conversation.untrained]
        written = _assistant(conversation.messages[: places[-1] + 1])
        if len(whole.blocks) != len(written):
            what = (
                f"marks {len(whole.blocks)} turns with {{% generation %}}, not the {len(written)} of the assistant, in"
            )
            raise self._template.refusal(
                what, conversation.messages, "Mark each turn of the assistant once", name=conversation.name
            )
        blocks = [block for place, block in zip(written, whole.blocks, strict=True) if place in places]
        starts = [  # a block may begin with what the template writes for the policy to continue
            max(start, len(head.text)) if whole.text.startswith(head.text) else start
            for (start, _), (head, _) in zip(blocks, turns, strict=True)
        ]
        trained = [
            self._until_stop(self._encode_part(whole, start, end))
            for start, (_, end) in zip(starts, blocks, strict=True)
        ]
        row = self._masked(self._encode_part(whole, 0, starts[0]), whole, starts, trained)
        if row is None:
            what = "changes an earlier turn of the assistant when turns follow it, so the part to train is unclear, in"
            fix = "Set turns: last, or mark whole turns with {% generation %}"
            raise self._template.refusal(what, conversation.messages, fix, name=conversation.name)
        return row

    def _joined(
        self, turns: Sequence[tuple[RenderedConversation, RenderedConversation]], trained: Sequence[list[int]]
    ) -> TokenRow | None:
        """Return the row of these turns; None if the template changes one of them when others follow."""
        (head, _), (_, whole) = turns[0], turns[-1]
        if len(turns) == 1:
            return TokenRow(self._encode_part(head), trained[0])
        if not all(whole.text.startswith(opened.text) for opened, _ in turns):
            return None
        return self._masked(self._encode_part(head), whole, [len(opened.text) for opened, _ in turns], trained)

    def _masked(
        self, prompt: list[int], whole: RenderedConversation, starts: Sequence[int], trained: Sequence[list[int]]
    ) -> TokenRow | None:
        """Return a row with a mask: each trained turn, and the text before the next; None if they differ."""
        rest: list[int] = []
        mask: list[bool] = []
        for start, end, ids in zip(starts, [*starts[1:], None], trained, strict=True):
            part = self._encode_part(whole, start, end) if end else ids
            if part[: len(ids)] != ids:
                return None
            rest += part
            mask += [place < len(ids) for place in range(len(part))]
        return TokenRow(prompt, rest, mask)

    def _until_stop(self, ids: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(ids) if token in self.stops.tokens), None)
        if end is None:
            raise DataError(
                what="the chat template puts no stop token after the answer",
                where=self._where,
                fix=f"End the assistant's turn with {self.tokenizer.eos_token} in the template",
            )
        return ids[: end + 1]

    def _encode_part(self, whole: RenderedConversation, skip: int = 0, end: int | None = None) -> list[int]:
        """Return the ids of a part of the rendered text. Text that looks like a special token is encoded as text."""
        text = whole.text[:end]
        ids: list[int] = []
        at = skip
        for first, last in whole.spans:
            if last <= skip or first >= len(text):
                continue
            ids += self._encode_markup(text[at : max(first, at)])
            ids += self.plain([text[max(first, at) : last]])[0]
            at = last
        return ids + self._encode_markup(text[at:])

    def _encode_markup(self, text: str) -> list[int]:
        ahead: Mapping[str, list[int]] = getattr(self._encoded, "ids", {})
        ids: list[int] = ahead.get(text) or self._tokenize(text)
        return ids

    def _encode_ahead(self, texts: list[str]) -> None:
        """Encode many texts in one call, so that the tokenizer uses several cores."""
        self._encoded.ids = dict(zip(texts, self._tokenize(texts), strict=True)) if texts else {}

    def _tokenize(self, text: str | list[str], **how: bool) -> Any:
        try:
            with self._tokenizing:
                return self.tokenizer(text, add_special_tokens=False, return_attention_mask=False, **how)["input_ids"]
        except BaseException as error:  # a panic of tokenizers is no Exception, and its class cannot be imported
            if type(error).__name__ != "PanicException":
                raise
            what = f"the tokenizer fails on a text ({shortened(str(error), 200)})"
            fix = "Simplify the patterns in its tokenizer.json, or shorten the text"
            raise DataError(what=what, where=self._where, fix=fix) from error


def _conversation(talk: Sequence[Message] | Conversation) -> Conversation:
    return talk if isinstance(talk, Conversation) else Conversation(talk)


def _assistant(messages: Sequence[Message]) -> list[int]:
    return [index for index, turn in enumerate(messages) if turn["role"] == "assistant"]

"""The tokenizer of an imported model, with the pad token and chat template that chat training needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from posttrain.errors import ModelError, shortened
from posttrain.files import is_outside, read_finite_json
from posttrain.models.files.adapter_files import config_file
from posttrain.models.files.store import (
    GENERATION,
    TOKENIZER_FILES,
    check_vocabulary,
    load_stop_tokens,
    load_tokenizer,
)
from posttrain.settings.params import Params
from posttrain.settings.plain import CUSTOM
from posttrain.text.chat import DATE, ChatText, TemplateVariables, check_read
from posttrain.text.chat_template import Conversation, Message
from posttrain.text.templates import RenderError, RenderRequest, Template, with_defaults

TURN = "{{ message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}"
TEMPLATE = (
    f"{{% for message in messages %}}{TURN}{{% endfor %}}"
    "{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}"
)
"""Each turn is its role, its content and the end token. Content cannot contain the end token, so no turn can be
forged."""
TEST_CONVERSATION: list[Message] = [
    {"role": "user", "content": "What is 2 and 3?"},
    {"role": "assistant", "content": "That is five."},
    {"role": "user", "content": "And 4 and 4?"},
    {"role": "assistant", "content": "That is eight."},
]
"""The conversation that a chat template is tested on."""


class TemplateParams(Params):
    """The chat template of a given model."""

    chat_template: str | None = Field(
        None,
        pattern=rf"^{CUSTOM}/[\w-][\w./-]*$",
        description=f"a Jinja file in {CUSTOM}/ in place of the model's chat template; null: the model's own",
    )
    template: TemplateVariables = Field(
        default_factory=dict,
        description="variables for the chat template, e.g. {enable_thinking: false}; saved in the template",
    )


def complete_tokenizer(
    folder: Path, target: Path, chat_template: str | None = None, variables: Mapping[str, Any] | None = None
) -> None:
    """Write the folder's tokenizer to `target`, adding a pad token and a chat template if missing.

    `chat_template`: a file whose template replaces the folder's. `variables`: fixed values for its variables.
    """
    target.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    if not (folder / "tokenizer.json").is_file():
        _convert(folder, target)
    template = None if chat_template is None else _read_template(chat_template)
    if variables:
        template = load_tokenizer(target).get_chat_template() if template is None else template
        check_read(template, variables, str(folder))
        template = with_defaults(template, variables)
    if template is not None:
        (target / "chat_template.jinja").unlink(missing_ok=True)
    added, messages = _missing(folder, target, template)
    if added:
        file = target / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        file.write_text(json.dumps({**config, **added}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(target)
    check_vocabulary(tokenizer, folder)
    if tokenizer(tokenizer.eos_token, add_special_tokens=False)["input_ids"] != [tokenizer.eos_token_id]:
        what = f"its end token {tokenizer.eos_token!r} is not a single token of the vocabulary"
        raise ModelError(what=what, where=str(folder), fix="Set eos_token in tokenizer_config.json")
    if messages:
        print(f"{folder}: {'; '.join(messages)}")


def check_template(folder: Path, files: Path, chat_template: str, *, scores: bool) -> tuple[int, ...]:
    """Try the current template of `files` on a conversation. Return the end tokens.

    The token that the template writes after an answer becomes one of them.
    """
    ends = load_stop_tokens(folder)
    text = ChatText(load_tokenizer(files), chat_template, ends)
    text.whole([TEST_CONVERSATION])
    if scores:
        return ends
    end = text.ending(TEST_CONVERSATION)
    token = None if end is None else text.tokenizer.convert_tokens_to_ids(end)
    if token is not None and token not in text.stops.tokens:
        ends = (*text.stops.tokens, token)
        file = files / GENERATION
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        settings["eos_token_id"] = list(ends)
        file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{folder}: {chat_template} ends an answer with {end}, so {end} becomes an end token")
        text = ChatText(load_tokenizer(files), chat_template, ends)
    text.conversations([Conversation(TEST_CONVERSATION)], "last")
    text.prompts([TEST_CONVERSATION[:1], TEST_CONVERSATION[:3]])
    return ends


def template_fault(file: Path) -> str | None:
    """Return the reason why a template fails on a conversation, independent of the tokenizer; None if it works."""
    template = Template(file.read_text(encoding="utf-8", errors="replace"), {"bos_token": "", "eos_token": ""}, DATE)
    try:
        list(template.render([RenderRequest(TEST_CONVERSATION, opened=False)]))
    except RenderError as error:
        return str(error)
    return None


def written_template(root: Path, folder: Path | None, chat_template: str | None) -> str | None:
    """Return the template in a run's file, or the template in a folder; None if there is neither."""
    if chat_template is not None:
        file = root / chat_template
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
    files = [root / folder / name for name in ("chat_template.jinja", "tokenizer_config.json")] if folder else []
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    return "\n".join(texts) if texts else None


def _read_template(file: str) -> str:
    if is_outside(file, CUSTOM):
        raise ModelError(what=f"the chat template lies outside {CUSTOM}/", where=file, fix=f"Move it to {CUSTOM}/")
    try:
        template = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"the chat template cannot be read ({error})"
        raise ModelError(what=what, where=file, fix="Give a Jinja file in UTF-8") from error
    if not template.strip():
        raise ModelError(what="the chat template is empty", where=file, fix="Write a Jinja template, or remove the key")
    return template


def _missing(folder: Path, target: Path, template: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return missing or replaced entries of tokenizer_config.json, and messages about them."""
    tokenizer, added, messages = load_tokenizer(target), {}, []
    end = tokenizer.eos_token
    if end is None:
        first = next(iter(_stated_ends(folder)), None)
        end = tokenizer.convert_ids_to_tokens(first) if isinstance(first, int) and 0 <= first < len(tokenizer) else None
        if end is None:
            fix = "Set eos_token in tokenizer_config.json to the token that ends an answer"
            raise ModelError(what="the tokenizer has no end token", where=str(folder), fix=fix)
        added["eos_token"] = end
    if tokenizer.pad_token is None:
        added["pad_token"] = end
        messages.append(f"the tokenizer has no pad token, so the end token {end} serves as one")
    if template is not None:
        added["chat_template"] = template
    elif not tokenizer.chat_template:
        begins = tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        added["chat_template"] = ("{{ bos_token }}" if begins else "") + TEMPLATE
        messages.append(f"it has no chat template, so a turn is written as its role, a line break, its text and {end}")
    return added, messages


def _stated_ends(folder: Path) -> Sequence[Any]:
    """Return the end tokens in config.json or generation_config.json, but not transformers' defaults."""
    config = read_finite_json(config_file(folder))
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]  # of a text model in another
    listed = next((part["eos_token_id"] for part in parts if part.get("eos_token_id") is not None), None)
    if listed is None:
        return load_stop_tokens(folder)
    return listed if isinstance(listed, list) else [listed]


def _convert(folder: Path, target: Path) -> None:
    """Write tokenizer.json from an older layout, e.g. vocab.json and merges.txt."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):
            raise ValueError("there is no file with a vocabulary")
        tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain Exception; there is no narrower class
        what = f"tokenizer.json is missing and cannot be made from its files ({shortened(str(error), 200)})"
        fix = "Where its packages are installed, run AutoTokenizer.from_pretrained(...).save_pretrained(...) once"
        raise ModelError(what=what, where=str(folder), fix=fix) from error
    file = target / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    listed = folder / "special_tokens_map.json"
    stated = config | (json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else {})
    special = tokenizer.special_tokens_map
    config |= {name: token for name, token in special.items() if name != "eos_token" or name in stated}
    if tokenizer.chat_template:
        config["chat_template"] = tokenizer.chat_template
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")

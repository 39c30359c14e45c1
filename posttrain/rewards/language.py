"""Language consistency (DeepSeek-R1): the share of a text in the target language, by its script or by a detector."""

from __future__ import annotations

from typing import Annotated, Final

import regex
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from posttrain.rewards.detector import share_in
from posttrain.rewards.format import as_tuple
from posttrain.rewards.reward import rule
from posttrain.rewards.words import UNSPACED
from posttrain.rollout import Rollout, Score
from posttrain.settings.params import Params, did_you_mean

KNOWN: Final = (
    *("arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian", "greek", "gujarati"),
    *("gurmukhi", "han", "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam"),
    *("mongolian", "myanmar", "sinhala", "tamil", "telugu", "thai", "tibetan"),
)
"""Unicode names of scripts."""
_SKIPPED: Final = regex.compile(
    r"(?s)```.*?```"  # code; an open fence is text, else one would hide all that follows
    r"|`[^`\n]+`"
    r"|\\(?:begin|end)\{\w*\*?\}|\\[A-Za-z]+"  # LaTeX commands; what they are applied to is text
    r"|</?[A-Za-z][\w-]*>"
)
_RUNS: Final = regex.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})\p{{L}}\p{{M}}*)+")
_SINGLE: Final = regex.compile(rf"(?!{UNSPACED})\p{{L}}\p{{M}}*|[\p{{Script=Common}}\p{{M}}]+")
"""A variable such as x, or mathematical letters. They belong to no language."""


def _scripts(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in KNOWN:
            raise ValueError(
                f"'{name:.40}' is not a supported script, e.g. latin, cyrillic, han. {did_you_mean(name, KNOWN)}"
            )
    return names


class LanguageOptions(Params):
    """The target language, by its script or its code."""

    script: Annotated[
        tuple[str, ...],
        BeforeValidator(
            lambda value: (value,) if isinstance(value, str) else as_tuple(value),
            json_schema_input_type=str | list[str],
        ),
        AfterValidator(_scripts),
    ] = Field((), description="its script, e.g. latin, cyrillic or han; or a list such as [han, hiragana, katakana]")
    detect: str | None = Field(
        None,
        pattern="^[a-z]{2,3}$",
        description="its ISO 639 code instead of the script, e.g. fr; the package py3langid detects the language",
    )

    @model_validator(mode="after")
    def _one_way(self) -> LanguageOptions:
        if not self.script and "script" in self.model_fields_set:
            raise ValueError("script is empty. Give at least one, e.g. latin")
        if bool(self.script) == bool(self.detect):
            raise ValueError("give either script, e.g. latin, or detect, e.g. fr")
        return self


@rule(LanguageOptions, shaping=True)
def in_language(rollout: Rollout, options: LanguageOptions) -> Score:
    """Return the share of words in the script. Code, LaTeX commands, tags and numbers do not count.

    With `detect`: the share of letters in passages that the detector assigns to the language.
    """
    if options.detect:
        share = share_in(options.detect, _SKIPPED.sub(" ", rollout.text))
        return (
            Score(0.0, "unparseable", "it has too few words to detect the language") if share is None else Score(share)
        )
    letters = "".join(rf"\p{{Script={name}}}" for name in options.script)
    target = regex.compile(rf"[{letters}\p{{M}}]+")
    runs = [run for run in _RUNS.findall(_SKIPPED.sub(" ", rollout.text)) if not _SINGLE.fullmatch(run)]
    if not runs:
        return Score(0.0, "unparseable", "it has no words")
    return Score(sum(target.fullmatch(run) is not None for run in runs) / len(runs))


REWARDS = {"language": in_language}

"""The form of a completion: a final number, tags in a given order, or the user's pattern."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from posttrain.rewards.numeric import NumericOptions, final_number, missing_number
from posttrain.rewards.reward import Examples, rule
from posttrain.rollout import Prompt, Rollout, Score

BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\u17b4\u17b5")
"""Letters and signs that show nothing: fillers of Hangul and Khmer, the empty pattern of Braille."""
_NAME = re.compile(r"[A-Za-z][\w-]*")


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple. Options are dictionary keys, so they must be hashable."""
    return tuple(value) if isinstance(value, list) else value


def _tags(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not names or len({name.lower() for name in names}) < len(names) or not all(map(_NAME.fullmatch, names)):
        raise ValueError("tags must be different names without < and >. Write e.g. [think, answer]")
    return names


class FormatOptions(NumericOptions):
    """The required form of a completion; a final number by default."""

    tags: Annotated[tuple[str, ...] | None, BeforeValidator(as_tuple), AfterValidator(_tags)] = Field(
        None,
        description="the whole completion consists of these tags in this order, e.g. [think, answer]; needs no number",
    )
    empty: Literal["refuse", "allow"] = Field("refuse", description="require adjacent tags")
    template: str | None = Field(
        None, description="the whole completion matches this regular expression; needs no number"
    )

    @model_validator(mode="after")
    def _one_form(self) -> FormatOptions:
        if self.tags is not None and self.template is not None:
            raise ValueError("tags and template exclude each other. Remove one of them")
        if self.empty != "refuse" and self.tags is None:
            raise ValueError("empty only works with tags. Remove empty, or set tags")
        if self.template is not None:
            from posttrain.rewards.patterns import valid_pattern  # few runs need the package behind it

            valid_pattern(self.template)
        return self


def _examples(prompt: Prompt, options: FormatOptions) -> Examples:  # noqa: ARG001
    if options.template is not None:
        return Examples()
    if options.tags is None:
        return Examples([f"{options.after or ''} 7".strip()], ["seven"])
    parts = [f"<{name}>some text</{name}>" for name in options.tags]
    right = "\n".join(parts)
    return Examples([right], ["some text", f"{right}\nsome text", f"{right}\n{right}", f"{parts[0]}\n{right}"])


@rule(FormatOptions, shaping=True, examples=_examples)
def well_formed(rollout: Rollout, options: FormatOptions) -> Score:
    """Return 1 if the text ends by itself and has the required form."""
    if options.tags is not None:
        fault = _tag_fault(rollout.text, options.tags, options.empty)
    elif options.template is not None:
        from posttrain.rewards.patterns import pattern_score

        matched = pattern_score(options.template, rollout.text, "full")
        if matched.status != "ok":
            return matched
        fault = "" if matched.value else "it does not match the template"
    elif final_number(rollout.text, options) is None:
        return missing_number(options)
    else:
        count = 1 if options.after is None else rollout.text.count(options.after)
        fault = "" if count == 1 else f"`{options.after}` is there {count} times"
    fault = fault or ("it is truncated" if rollout.truncated else "")
    return Score(float(not fault), reason=fault)


def _tag_fault(text: str, tags: tuple[str, ...], empty: Literal["refuse", "allow"]) -> str:
    """Return the reason why the text is not exactly these tags, each used once, with white space between them."""
    like = "|".join(map(re.escape, tags))
    # also </ think >, <THINK> and <think id=1>: text inside a part that a lenient reader would take for a tag
    seen = list(re.finditer(rf"<[\s/]*(?:{like})(?![\w-])[^<>]*>", text, re.IGNORECASE))
    wanted = [tag for name in tags for tag in (f"<{name}>", f"</{name}>")]
    if [tag.group() for tag in seen] != wanted:
        shown = " ".join(tag.group() for tag in seen)
        return f"its tags are {f'{shown:.80}' or 'missing'}, not {' '.join(wanted)}"
    ends = [0, *(place for tag in seen for place in tag.span()), len(text)]
    between = [text[start:end] for start, end in list(pairwise(ends))[::2]]  # around tags, inside a part, and so on
    if any(outside.strip() for outside in between[::2]):
        return "there is text outside of its tags"
    if empty == "refuse" and not all(map(_has_text, between[1::2])):
        return "a part is empty"
    return ""


def _has_text(part: str) -> bool:
    """Tell whether the text has visible characters. Zero-width and blank characters do not count."""
    return any(char.isprintable() and not char.isspace() and char not in BLANK for char in part)


REWARDS = {"format": well_formed}

"""What renders chat templates, in this process."""

from __future__ import annotations

import io
import json
import resource
import signal
from typing import Any

import pytest

from posttrain.text import template_worker
from posttrain.text.template_worker import LONGEST, Dict, Namespace, _line, _to_json, compiled, main, render

TALK = [{"role": "user", "content": "1+1"}]


def rendered(template: str, **values: Any) -> dict[str, Any]:
    return render(template, "2024-07-26", {"messages": TALK, "tools": None, **values})


def test_text() -> None:
    assert rendered("{{ messages[0].content }}={{ mode }}", mode="2") == {"text": "1+1=2", "dated": False, "blocks": []}


def test_the_fixed_date() -> None:
    assert rendered("{{ strftime_now('%d %B %Y') }}") == {"text": "26 July 2024", "dated": True, "blocks": []}


def test_blocks_of_trained_text() -> None:
    template = "a{% generation %}bc{% endgeneration %}d{% generation %}{{ 1 }}{% endgeneration %}"
    assert rendered(template) == {"text": "abcd1", "dated": False, "blocks": [(1, 3), (4, 5)]}


def test_a_block_in_a_macro_is_refused() -> None:
    template = "{% macro m() %}{% generation %}b{% endgeneration %}{% endmacro %}a{% set x = m() %}c{{ x }}"
    assert rendered(template) == {"error": "a {% generation %} block is inside a macro, set or filter"}


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("\n{{ raise_exception('no system') }}", "no system (line 2 of the template)"),
        ("{{ 1 / 0 }}", "ZeroDivisionError('division by zero') (line 1 of the template)"),
        ("\n\n{% no %}", "TemplateSyntaxError(\"Encountered unknown tag 'no'.\") (line 3 of the template)"),
        ("{{ namespace(_x=1) }}", "SecurityError(\"a namespace cannot hold '_x'\") (line 1 of the template)"),
    ],
)
def test_errors_name_their_line(template: str, error: str) -> None:
    assert rendered(template)["error"].replace("'", '"') == error.replace("'", '"')


def test_memory_and_length_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(template: str) -> None:
        raise MemoryError

    size = LONGEST + 10 * (len(str(TALK)) + len("None"))
    assert rendered(f"{{{{ 'x' * {size} }}}}")["text"] == "x" * size
    assert rendered(f"{{{{ 'x' * {size + 1} }}}}") == {
        "error": f"it writes {size + 1:,} characters for one conversation, more than {size:,}"
    }
    monkeypatch.setattr(template_worker, "compiled", none)
    assert rendered("x") == {"error": "it needs more than 512 MiB of memory"}


def test_a_template_is_compiled_once() -> None:
    source = "  {% if true %}\na\n  {% endif %}\n"
    assert compiled(source).render() == "a\n" and compiled(source) is compiled(source)
    assert rendered("{% for x in [1, 2] %}{{ x }}{% break %}{% endfor %}")["text"] == "1"


def test_names_of_a_template() -> None:
    assert rendered("{% set ns = namespace(a=1) %}{% set ns.b = 2 %}{{ ns.a + ns.b }}")["text"] == "3"
    assert rendered("{{ dict(a=1) }}{{ dict.fromkeys('ab', 0) }}")["text"] == "{'a': 1}{'a': 0, 'b': 0}"
    assert Dict()([("a", 1)], b=2) == {"a": 1, "b": 2} and Dict().fromkeys("a") == {"a": None}
    with pytest.raises(Exception, match="a namespace cannot hold '_x'"):
        Namespace()["_x"] = 1


def test_json_is_not_escaped() -> None:
    assert rendered("{{ ['<é>'] | tojson }}")["text"] == '["<é>"]'
    assert _to_json({"b": 1, "a": "é"}, ensure_ascii=True, sort_keys=True) == '{"a": "\\u00e9", "b": 1}'
    assert _to_json([1, 2], indent=1) == "[\n 1,\n 2\n]" and _to_json([1, 2], separators=(";", ":")) == "[1;2]"


def test_the_line_of_an_error() -> None:
    assert _line(ValueError("outside of any template")) is None
    with pytest.raises(ZeroDivisionError) as failed:
        compiled("\n\n{{ 1 // 0 }}").render()
    assert _line(failed.value) == 3


def test_each_line_of_stdin_is_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {
        "template": "{{ bos }}{{ messages[0].content }}{{ mode }}",
        "date": "2024-07-26",
        "specials": {"bos": "<s>"},
    }
    talks = [{"messages": TALK, "tools": None, "mode": mode} for mode in (1, 2)]
    line = json.dumps({**asked, "conversations": talks})
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n{line}\n"))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)  # the limit would stay with this process
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    main()
    answers = [json.loads(answer) for answer in capsys.readouterr().out.splitlines()]
    assert [[one["text"] for one in answer] for answer in answers] == [["<s>1+11", "<s>1+12"]] * 2

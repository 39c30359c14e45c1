"""The reward `json_schema`: what is valid, what cannot be read, and schemas that are refused."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Score
from posttrain.settings.params import Params, check
from tests.library.models.tiny import rollout_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Settings(Params):
    reward: Rewards


def summed(**options: Any) -> RewardSum:
    terms = check(Settings, {"reward": {"json_schema": {"weight": 1.0, **options}}}, where="online.runs.a").reward
    return RewardSum(terms, Context(Runtime(DeviceParams()), "test"))


@lru_cache(maxsize=8)
def started(_folder: Path, options: str) -> RewardSum:
    """Return the sum whose worker processes an earlier call with these options has started."""
    return summed(**json.loads(options))


def scored(*texts: str, info: dict[str, Any] | None = None, answer: str = "", **options: Any) -> list[Score]:
    prompt = Prompt("p", [], [], answer, info=info or {})
    found = started(Path.cwd(), json.dumps(options)).score([replace(rollout_of(text), prompt=prompt) for text in texts])
    return [one.scores["json_schema"] for one in found]


RIGHT = ['{"name": "Ann", "age": 7}', ' \n{"age": 0, "name": "ß"}\n', '{"name":"A","age":7.0}']
WRONG = ['{"name": "Ann"}', '{"name": "Ann", "age": "7"}', '{"name": "", "age": 7}', "[]", "7", "null"]
WRONG += ['{"name": "Ann", "age": 7, "more": 1}', '{"name": "Ann", "age": -1}', '[{"name": "Ann", "age": 7}]']
NO_JSON = ["", "Ann is 7", "{'name': 'Ann', 'age': 7}", '{"name": "Ann", "age": 7', '{"name": "Ann", "age": 7} Done.']
NO_JSON += ['{"name": "Ann", "age": NaN}', '{"name": "Ann", "age": 1e999}', '{"name": "Ann", "age": "x", "age": 7}']
NO_JSON += [
    f'{{"name": "Ann", "age": {"9" * 5000}}}',
    "[" * 100_000,
    "[" * 100 + "]" * 100,
    'Here: {"name": "A", "age": 7}',
]
NO_JSON += ['```json\n{"name": "Ann", "age": 7}\n```']


@pytest.mark.slow
def test_json_that_is_valid_is_right() -> None:
    assert [one.value for one in scored(*RIGHT, schema=PERSON)] == [1.0] * len(RIGHT)
    for one in scored(*WRONG, schema=PERSON):
        assert (one.value, one.status) == (0.0, "ok") and one.reason.startswith("$")
    for one in scored(*NO_JSON, schema=PERSON):
        assert (one.value, one.status) == (0.0, "unparseable") and "not JSON" in one.reason


@pytest.mark.slow
def test_the_last_block_is_read_where_it_is_asked_for() -> None:
    def block(text: str) -> str:
        return f"Here:\n```json\n{text}\n```\n"

    texts = [block(RIGHT[0]), block(WRONG[0]) + block(RIGHT[0]), block(RIGHT[0]) + block(WRONG[0]), RIGHT[0]]
    found = scored(*texts, "```json\n{", "```\n{}\n```", schema=PERSON, find="block")
    assert [one.value for one in found] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert [one.status for one in found] == ["ok", "ok", "ok", "unparseable", "unparseable", "unparseable"]


@pytest.mark.slow
def test_formats_of_the_standard_library_are_checked() -> None:
    for name, right, wrong in (
        ("date", "2024-02-29", "2023-02-29"),
        ("email", "a@b", "a"),
        ("ipv4", "1.2.3.4", "1.2.3.400"),
        ("ipv6", "::1", "1.2.3.4"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
    ):
        found = scored(json.dumps(right), json.dumps(wrong), schema={"type": "string", "format": name})
        assert [one.value for one in found] == [1.0, 0.0]


@pytest.mark.slow
def test_a_schema_in_a_file_of_custom_is_an_input_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/person.json").write_text(json.dumps(PERSON))
    found = scored(RIGHT[0], WRONG[0], schema="custom/person.json")
    assert [one.value for one in found] == [1.0, 0.0]
    run = {"reward": {"json_schema": {"schema": "custom/person.json"}}}
    code = Library().code("online@a", {"online": {"runs": {"a": run}}})
    assert "custom/person.json" in code["files"] and "jsonschema" in code["packages"]


@pytest.mark.slow
def test_the_schema_of_each_prompt() -> None:
    assert [one.value for one in scored(RIGHT[0], WRONG[0], info={"schema": PERSON})] == [1.0, 0.0]
    assert [one.value for one in scored("7", '"7"', info={"schema": True})] == [1.0, 1.0]
    assert [one.value for one in scored(RIGHT[0], WRONG[0], info={"schema": json.dumps(PERSON)})] == [1.0, 0.0]
    terms = summed().terms
    prompts = [Prompt(f"p{n}", [], [], info=info) for n, info in enumerate([{}, {"schema": PERSON}, {"schema": 3}])]
    assert [one.id for one in scorable_prompts(terms, prompts, "here")] == ["p1"]
    with pytest.raises(DataError, match="no schema"):
        scorable_prompts(terms, [replace(prompts[0], answer="{}")], "here")


@pytest.mark.slow
@pytest.mark.parametrize("find", ["whole", "block"])
def test_an_answer_that_is_json_is_an_example(find: str) -> None:
    term = summed(schema=PERSON, find=find).terms["json_schema"]
    examples = term.reward.examples(Prompt("p", [], [], RIGHT[0]), term.options)
    assert [one.value for one in scored(*examples.right, schema=PERSON, find=find)] == [1.0]
    assert [one.value for one in scored(*examples.wrong, schema=PERSON, find=find)] == [0.0]
    for answer in ("Ann is 7", "7"):  # for another reward
        assert not term.reward.examples(Prompt("p", [], [], answer), term.options).right


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """An address with a schema that everything is valid against, and what has been asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}/any.json", asked
        found.shutdown()


@pytest.mark.slow
def test_references_to_elsewhere_are_refused_and_never_fetched(server: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = server
    file = tmp_path / "any.json"
    file.write_text("{}")
    for reference in (address, file.as_uri(), "any.json", "#/$defs/missing"):
        for schema in ({"$ref": reference}, {"properties": {"a": {"$ref": reference}}}):
            with pytest.raises(ParamsError, match=r"Put it under \$defs; posttrain does not download"):
                summed(schema=schema)
            (score,) = scored('{"a": 1}', info={"schema": schema})
            assert score.status == "unparseable" and "does not download references" in score.reason
    assert asked == []
    inside = {"$defs": {"n": {"type": "number"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert [one.value for one in scored('{"a": 1}', '{"a": "1"}', schema=inside)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("person.json", "cannot be used"),
        ("custom/missing.json", "custom/missing.json not found"),
        ("custom/../params.yaml", "not found in custom/"),
        ({"type": "objekt"}, "the schema is wrong at $.type"),
        ({"properties": {"a": {"minimum": "1"}}}, "the schema is wrong at $.properties.a.minimum"),
        ({"pattern": "(a"}, "the schema is wrong at $.pattern"),
        ({"$ref": "#"}, "refers to itself endlessly"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself endlessly"),
        ("[1]", "it is not an object"),
        ({"$schema": {}}, "$schema is not a text"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(schema: Any, said: str) -> None:
    with pytest.raises(ParamsError) as caught:
        summed(schema=schema)
    assert said in str(caught.value), caught.value


@pytest.mark.slow
def test_a_schema_may_be_recursive() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "required": ["n"]}
    deep = '{"n":1,"left":' * 60 + '{"n":1}' + "}" * 60
    found = scored(deep, deep.replace('{"n":1}', "{}"), schema=tree)
    assert [one.value for one in found] == [1.0, 0.0]


@pytest.mark.slow
def test_a_completion_on_which_a_pattern_takes_exponential_time_scores_0() -> None:
    began = time.process_time()
    (score,) = scored(json.dumps("a" * 5000 + "!"), schema={"pattern": "^(a|aa)+$"})
    assert (score.value, score.status) == (0.0, "unparseable") and re.search(
        r"matching .* takes over 1 s of CPU time", score.reason
    )
    assert time.process_time() - began < 5

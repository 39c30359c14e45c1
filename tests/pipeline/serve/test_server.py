"""The endpoint of a policy: who may ask, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from posttrain.errors import ParamsError
from posttrain.pipeline.serve import server as module
from posttrain.pipeline.serve.policy import Job, Policy
from posttrain.pipeline.serve.requests import ROWS
from posttrain.pipeline.serve.server import SECRET, Batcher, application
from posttrain.sampling.sampler import SamplingParams
from tests.library.models.tiny import tiny_folder

KEY = "0123456789abcdef"
TALK = [{"role": "user", "content": "1+1="}]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return Policy(str(tiny_folder(tmp_path_factory.mktemp("tiny"))), 1)


@pytest.fixture(scope="module")
def client(policy: Policy) -> Iterator[TestClient]:
    with TestClient(application(policy, "tiny", KEY), headers={"Authorization": f"Bearer {KEY}"}) as found:
        yield found


def asked(client: TestClient, path: str = "/v1/chat/completions", **more: Any) -> tuple[int, Any]:
    found = client.post(path, json={"model": "tiny", "max_tokens": 4, **more})
    return found.status_code, found.json() if "json" in found.headers["content-type"] else found.text


def test_the_served_model_is_listed(client: TestClient, policy: Policy) -> None:
    found = client.get("/v1/models")
    served = {"id": "tiny", "object": "model", "owned_by": "posttrain", "weights": policy.weights}
    assert (found.status_code, found.json()) == (200, {"object": "list", "data": [served]})


def test_nobody_asks_without_the_key(client: TestClient) -> None:
    for found in (
        client.get("/v1/models", headers={"Authorization": "Bearer wrong"}),
        client.post("/v1/chat/completions", json={}, headers={"Authorization": KEY}),
        client.post("/v1/completions", json={}, headers={"Authorization": ""}),
    ):
        assert found.status_code == 401 and found.json()["error"]["code"] == "invalid_api_key"
        assert found.json()["error"]["message"] == "send the server's key as 'Authorization: Bearer KEY'"


def test_a_conversation_is_answered(client: TestClient) -> None:
    status, found = asked(client, messages=TALK, seed=1, n=2)
    assert status == 200 and len(found["choices"]) == 2
    assert asked(client, messages=TALK, seed=1, n=2)[1]["choices"] == found["choices"]
    status, text = asked(client, messages=TALK, stream=True)
    assert status == 200 and text.endswith("data: [DONE]\n\n")
    status, found = asked(client, messages=TALK, prompt_logprobs=0, max_tokens=1)
    assert status == 200 and found["prompt_logprobs"][0] is None


def test_tokens_are_scored(client: TestClient) -> None:
    status, found = asked(client, "/v1/completions", prompt=[5, 6, 7], prompt_logprobs=1, max_tokens=1)
    assert status == 200 and len(found["choices"][0]["prompt_logprobs"]) == 3


def test_what_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, more in (
        ("/v1/chat/completions", {"messages": TALK}),
        ("/v1/completions", {"prompt": [5, 6], "prompt_logprobs": 1}),
    ):
        status, found = asked(client, path, **{"max_tokens": 1, **more, "model": "other"})
        assert status == 404 and found["error"]["message"] == "the model 'other' is not served; this is tiny"
    assert asked(client, messages=[])[0] == 400
    assert asked(client, messages=TALK * 100)[0] == 400, "it is longer than the context"
    monkeypatch.setattr(module, "LARGEST", 10)
    status, found = asked(client, messages=TALK)
    assert status == 413 and found["error"]["code"] == "invalid_request"


def test_the_key_must_be_equal() -> None:
    def request(header: str) -> Request:
        return Request({"type": "http", "headers": [(b"authorization", header.encode())]})

    assert module._authorised(request(f"Bearer {KEY}"), KEY) is True
    assert (
        module._authorised(request(KEY), KEY) is False
        and module._authorised(Request({"type": "http", "headers": []}), KEY) is False
    )
    assert module._refusal(404, "a", "b").status_code == 404


def test_requests_are_answered_in_batches() -> None:
    class Echo:
        """Answers each job with its seed; a batch with seed 13 fails."""

        batches: list[int] = []  # noqa: RUF012

        def answer(self, jobs: list[Job]) -> list[int]:
            self.batches.append(len(jobs))
            if any(job.seed == 13 for job in jobs):
                raise RuntimeError("a defect")
            return [job.seed for job in jobs]

    def job(seed: int, n: int = 1) -> Job:
        return Job(TALK, SamplingParams(max_tokens=1), n=n, seed=seed)

    async def main() -> tuple[list[Any], Any]:
        policy: Any = Echo()
        batcher = Batcher(policy)
        assert batcher._next() == []
        waiting = [asyncio.ensure_future(batcher.answer(one)) for one in (job(1), job(2), job(3, ROWS))]
        task = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*waiting)
        (failed,) = await asyncio.gather(batcher.answer(job(13)), return_exceptions=True)
        task.cancel()
        return found, failed

    found, failed = asyncio.run(main())
    assert found == [1, 2, 3] and str(failed) == "a defect"
    assert Echo.batches == [2, 1, 1], "a batch has at most so many rows"


def test_work_for_a_client_that_is_gone_is_cancelled() -> None:
    async def main() -> tuple[Any, Any, bool]:
        loop = asyncio.get_running_loop()

        async def gone() -> dict[str, str]:
            return {"type": "http.disconnect"}

        request = Request({"type": "http", "headers": []}, gone)
        done, never = loop.create_future(), loop.create_future()
        done.set_result("answer")
        return await module._unless_gone(request, done), await module._unless_gone(request, never), never.cancelled()

    assert asyncio.run(main()) == ("answer", None, True)


def test_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(*chunks: bytes, wait: float = 0.0) -> bytes:
        left = list(chunks)

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(wait)
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        return asyncio.run(module._body(Request({"type": "http", "headers": []}, receive)))

    assert body(b"ab", b"c") == b"abc"
    monkeypatch.setattr(module, "LARGEST", 4)
    with pytest.raises(module._BodyError, match="the body has more than") as raised:
        body(b"abc", b"de")
    assert raised.value.status == 413
    monkeypatch.setattr(module, "BODY_S", 0.01)
    with pytest.raises(module._BodyError, match="the body did not come within") as raised:
        body(b"a", wait=5)
    assert raised.value.status == 408


def test_a_secret_is_the_users_or_made_for_the_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new/serve.key"
    monkeypatch.delenv(SECRET, raising=False)
    with module._secret(file) as (secret, place):
        assert place == str(file) and file.read_text() == f"{secret}\n" and len(secret) == 43
        assert file.stat().st_mode & 0o777 == 0o600
    assert not file.exists()
    monkeypatch.setenv(SECRET, KEY)
    with module._secret(file) as found:
        assert found == (KEY, f"${SECRET}") and not file.exists()
    monkeypatch.setenv(SECRET, "short")
    with pytest.raises(ParamsError, match="this is not a valid key"), module._secret(file):
        pass

"""Tenants of one gateway before a runtime that asks for no key: what each can learn of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent_client.gateway import create_app, read_tenants
from runtime.models.loader import load_model
from tests.agent_client.gateway_harness import ok, serving_http
from tests.runtime.services_harness import serving

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
EXPLAIN = "x-radixloop-explain"


@pytest.fixture(scope="module")
def url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("ana key-ana\nbob key-bob\ncid key-cid\n* key-operator\n")
    with (
        serving(load_model(str(tiny_model), dtype="fp32", device="cpu")) as server,
        serving_http(create_app(server.target, ["tiny"], read_tenants(keys))) as base,
    ):
        yield base


def caller(url: str, name: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer key-{name}", EXPLAIN: "1"}, timeout=60)


def explained(client: httpx.Client, text: str) -> str:
    answer = client.post(CHAT, json={"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": text}]})
    ok(answer)
    return answer.headers[EXPLAIN]


def test_a_verdict_never_tells_what_another_tenant_has_cached(url: str) -> None:
    ana, bob, cid, operator = (caller(url, name) for name in ("ana", "bob", "cid", "operator"))
    secret = "Dear diary, the code is 4711."
    explained(ana, secret)
    assert "never seen from token 0" in explained(bob, secret)
    # Nor where something of its own diverges: a guess that is right reads like one that is not.
    secret = "Dear Santa, my wish is a pony."
    explained(ana, secret)
    for guesser in (bob, cid):
        explained(guesser, "Dear Santa, how are you today?")
    told = explained(bob, secret)
    assert "diverged" in told
    assert told == explained(cid, "Dear Santa, my wish is a fish.")
    # Whoever may know everything is told.
    assert "other namespace" in explained(operator, secret)

"""Explaining, leasing, cutting and holding through the client and its commands, against the real server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_client import AsyncRadixClient, Chat, InvalidArgument, NotFound, RadixClient, ResourceExhausted
from agent_client.cli import app

from .conftest import RunningServer, ids

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    return start_server("--eviction", "agent", "--leasable-share", "0.25", "--quota", "noisy=0.5")


def command(*args: str) -> str:
    result = CliRunner().invoke(app, list(args), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_result_says_why_its_prompt_missed(client: RadixClient) -> None:
    prompt = ids(100)
    cold = client.generate(prompt, max_tokens=2)
    assert cold.verdict is not None
    assert cold.verdict.tokens_by_cause() == {"never_seen": 100}
    warm = client.generate([*prompt[:60], *ids(20, 1)], max_tokens=2)
    assert warm.verdict is not None
    assert warm.verdict.tokens_by_cause() == {"cached": 60, "diverged": 20}
    assert list(warm.verdict.spans[1].beside[0][:4]) == prompt[60:64]
    assert warm.verdict.missed_tokens == 20
    assert client.generate(prompt, max_tokens=2, bypass_cache=True).verdict is None


def test_explain_is_printed_for_a_person(client: RadixClient, server: RunningServer, salt: str, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "It is 12:30. Be brief."}, {"role": "user", "content": "Hello"}]
    client.generate(Chat(messages), max_tokens=2)
    messages[0]["content"] = "It is 12:45. Be brief."
    told = client.explain(Chat(messages))
    assert told.divergence is not None
    assert (told.divergence.message_index, told.divergence.role, told.divergence.offset) == (0, "system", 9)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"messages": messages}))
    printed = command("explain", str(request), "--target", server.target, "--salt", salt)
    lines = printed.splitlines()
    assert lines[0].startswith(f"{told.prompt_tokens} prompt tokens: {told.cached_tokens} cached")
    assert "something else was stored from here on" in printed
    assert "in message 0 (system), character 9" in printed
    sent, stored = (next(line for line in lines if line.startswith(f"  {name}")) for name in ("sent", "stored"))
    caret = lines[-1].index("^")
    assert (sent[caret], stored[caret]) == ("4", "3")
    as_json = json.loads(command("explain", str(request), "--target", server.target, "--salt", salt, "--json"))
    assert as_json["tokens_by_cause"]["cached"] == told.cached_tokens
    fresh = command("explain", "--text", "Hello", "--target", server.target, "--salt", salt)
    assert "never seen" in fresh


def test_leases_come_and_go(client: RadixClient, server: RunningServer) -> None:
    prompt = ids(80, 3)
    client.warm(prompt)
    lease = client.lease(prompt, ttl_s=60, priority=9, label="a test")
    assert (lease.covered_tokens, lease.priority) == (80, 9)
    assert lease.id in [each.id for each in client.leases().leases]
    assert "a test" in command("leases", "--target", server.target)
    assert client.renew_lease(lease.id, 600).ttl_s > 500
    (quota,) = json.loads(command("leases", "--json", "--target", server.target))["quotas"]
    assert (quota["salt"], quota["adapter"]) == ("noisy", None)
    assert quota["share"] == pytest.approx(0.5, abs=0.01)
    command("leases", "--release", str(lease.id), "--target", server.target)
    with pytest.raises(NotFound):
        client.release_lease(lease.id)


def test_a_lease_over_the_cap_is_refused_by_name(client: RadixClient) -> None:
    cap = client.leases().leasable_tokens
    *fitting, one_more = (ids(3500, seed) for seed in range(cap // 3500 + 1))
    held = []
    for prompt in fitting:
        client.warm(prompt)
        held.append(client.lease(prompt, ttl_s=60))
    client.warm(one_more)
    with pytest.raises(ResourceExhausted, match=str(cap)):
        client.lease(one_more, ttl_s=60)
    for each in held:
        client.release_lease(each.id)
    assert client.stats().lease_refusals_total >= 1


def test_a_quota_is_set_and_lifted(client: RadixClient, salt: str) -> None:
    assert client.set_quota(0.5).share == pytest.approx(0.5, abs=0.01)
    assert salt in [quota.salt for quota in client.quotas()]
    assert client.set_quota(None).share is None
    assert salt not in [quota.salt for quota in client.quotas()]


def test_a_session_is_cut_held_and_explained(client: RadixClient) -> None:
    with client.session() as session:
        session.chat([{"role": "user", "content": "one"}], max_tokens=4, ignore_eos=True)
        after_one = session.tokens
        session.chat([{"role": "user", "content": "two"}], max_tokens=4, ignore_eos=True)
        with pytest.raises(InvalidArgument, match="0, 2, 4"):
            session.truncate(messages=3)
        cut = session.truncate(messages=2)
        assert (cut.tokens, cut.messages, session.tokens) == (after_one, 2, after_one)
        assert cut.superseded_tokens > 0
        hold = session.hold("grep")
        assert hold.tokens == after_one
        assert hold.lease_id in [each.id for each in client.leases().leases]
        assert client.explain(session_id=session.id).cached_tokens == after_one - 1
        session.chat([{"role": "user", "content": "three"}], max_tokens=4)
        assert hold.lease_id not in [each.id for each in client.leases().leases]


async def test_the_asyncio_client_does_the_same(server: RunningServer, salt: str) -> None:
    async with AsyncRadixClient(server.target, salt=salt) as client:
        prompt = ids(50, 7)
        result = await client.generate(prompt, max_tokens=1, conversation="mine", priority=3, public_tokens=10)
        assert result.verdict is not None
        assert (await client.explain(prompt)).cached_tokens == 49
        lease = await client.lease(prompt, ttl_s=5)
        assert (await client.release_lease(lease.id)).id == lease.id
        async with await client.session() as session:
            await session.generate(prompt, max_tokens=3, ignore_eos=True)
            assert (await session.truncate(tokens=20)).tokens == session.tokens == 20


def test_misses_and_leases_are_in_the_metrics(client: RadixClient, server: RunningServer) -> None:
    client.generate(ids(40, 9), max_tokens=1)
    assert server.metrics_url is not None
    with urllib.request.urlopen(server.metrics_url, timeout=30) as answer:
        text = answer.read().decode()
    for name in (
        'radixloop_missed_tokens_total{cause="never_seen"}',
        "radixloop_leases ",
        "radixloop_leased_tokens ",
        "radixloop_lease_refusals_total ",
        'radixloop_tool_holds_total{outcome="granted"}',
        'eviction="agent"',
    ):
        assert name in text, name


def test_lint_asks_the_model_what_it_does_to_a_history(server: RunningServer, tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": "No."},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"messages": messages}))
    # The tiny model's template keeps histories, and a byte is a token wherever it stands.
    assert command("lint", str(trace), "--target", server.target) == "0 findings in 1 session, 2 calls\n"

"""The client library against the real server with a tiny model."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

import agent_client
from agent_client import AsyncRadixClient, Chat, Delta, RadixClient, Started
from agent_client.generate_options import GenerateOptions
from tests.timing import eventually

from .conftest import RunningServer, ids

pytestmark = pytest.mark.e2e


def test_the_second_call_hits_and_says_the_same(client: RadixClient) -> None:
    prompt = ids(100)
    cold = client.generate(prompt, max_tokens=20, ignore_eos=True, return_prompt_ids=True)
    warm = client.generate(prompt, max_tokens=20, ignore_eos=True)
    assert cold.prompt_ids is not None
    assert list(cold.prompt_ids) == prompt
    assert (cold.usage.cached_tokens, cold.usage.computed_tokens) == (0, 100)
    assert (warm.usage.cached_tokens, warm.usage.computed_tokens) == (99, 1)
    assert warm.token_ids == cold.token_ids
    assert cold.timing.total_s >= cold.timing.ttft_s > 0


def test_the_next_turn_reuses_prompt_and_output_but_the_last_token(client: RadixClient) -> None:
    prompt = ids(50, 1)
    first = client.generate(prompt, max_tokens=9, ignore_eos=True)
    second = client.generate([*prompt, *first.token_ids, *ids(5, 2)], max_tokens=1)
    assert second.usage.cached_tokens == 50 + 9 - 1


def test_bypassing_the_cache_neither_reads_nor_writes(client: RadixClient) -> None:
    prompt = ids(60, 3)
    for _ in range(2):
        assert client.generate(prompt, max_tokens=1, bypass_cache=True).usage.cached_tokens == 0
    assert client.generate(prompt, max_tokens=1).usage.cached_tokens == 0


def test_a_stream_keeps_its_books(client: RadixClient) -> None:
    events = list(client.stream("some text to go on from", max_tokens=12, ignore_eos=True))
    started, *deltas, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, agent_client.Finished)
    assert all(isinstance(event, Delta) for event in deltas)
    assert (
        sum(len(event.token_ids) for event in deltas if isinstance(event, Delta)) == finished.usage.output_tokens == 12
    )
    assert started.usage.prompt_tokens == finished.usage.prompt_tokens
    assert started.usage.cached_tokens == finished.usage.cached_tokens


def test_several_choices(client: RadixClient) -> None:
    done = client.generate(ids(30, 4), n=3, temperature=1.0, seed=1, max_tokens=5, ignore_eos=True, logprobs=True)
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    assert all(len(choice.token_ids) == len(choice.logprobs) == 5 for choice in done.choices)
    assert (done.usage.computed_tokens, done.usage.output_tokens) == (30, 15)


def test_tokens_and_text(client: RadixClient) -> None:
    tokens = client.tokenize("héllo wörld").token_ids
    assert client.detokenize(tokens) == "héllo wörld"
    rendered = client.tokenize(
        Chat([{"role": "user", "content": "hi"}], tools=[{"name": "f", "parameters": {}}])
    ).rendered
    assert rendered is not None
    assert "<|user|>hi" in rendered
    assert '"name": "f"' in rendered


def test_sessions_fork_and_share(client: RadixClient) -> None:
    with client.session() as session:
        first = session.generate(ids(40, 5), max_tokens=6, ignore_eos=True)
        assert session.tokens == 46
        with session.fork() as branch:
            left = branch.generate(ids(4, 6), max_tokens=2, ignore_eos=True)
        right = session.generate(ids(4, 7), max_tokens=2, ignore_eos=True)
        assert left.usage.prompt_tokens == right.usage.prompt_tokens == 50
        # The last generated token's KV was never computed; the branch computes it, and then the other has it too.
        assert (left.usage.cached_tokens, right.usage.cached_tokens) == (45, 46)
        assert first.session_tokens == 46
    with pytest.raises(agent_client.NotFound, match="session_id"):
        session.generate("more", max_tokens=1)


def test_a_turn_that_was_cancelled_leaves_the_session_as_it_was(client: RadixClient) -> None:
    with client.session() as session:
        session.generate(ids(30, 12), max_tokens=2, ignore_eos=True)
        with session.stream(ids(10, 13), max_tokens=3000, ignore_eos=True) as stream:
            next(stream)
        assert session.tokens == 32
        while client.stats().running_requests:
            time.sleep(0.01)
        assert session.generate(ids(5, 14), max_tokens=1).usage.prompt_tokens == 37


def test_a_session_of_chat_turns_computes_only_what_is_new(client: RadixClient) -> None:
    with client.session() as session:
        session.chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], max_tokens=8)
        before = session.tokens
        turn = session.chat([{"role": "user", "content": "and now?"}], max_tokens=8)
        assert turn.usage.cached_tokens >= before - 1


def test_warm_then_flush(client: RadixClient) -> None:
    prompt = ids(64, 8)
    assert client.warm(prompt).computed_tokens == 64
    assert client.generate(prompt, max_tokens=1).usage.cached_tokens == 63
    assert client.flush().tokens >= 64
    assert client.generate(prompt, max_tokens=1).usage.cached_tokens == 0


def test_nodes_and_stats(client: RadixClient) -> None:
    client.generate("a text that is cached now", max_tokens=1)
    (node,) = client.nodes(all_namespaces=False, head_tokens=6)
    assert node.head == "a text"
    assert node.salt is not None
    stats = client.stats()
    assert stats.free_blocks + stats.cached_blocks + stats.active_blocks == stats.total_blocks
    info = client.model_info()
    assert info.block_size == stats.block_size
    assert info.context_length == 4096


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"n": 65}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
def test_bad_settings_are_refused_by_name(client: RadixClient, options: GenerateOptions, field: str) -> None:
    with pytest.raises(agent_client.InvalidArgument, match=field):
        client.generate("x", **options)
    assert client.generate("x", max_tokens=1).usage.output_tokens == 1


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client: RadixClient) -> None:
    with pytest.raises(agent_client.RadixloopError, match=r"4,?096") as caught:
        client.generate(ids(5000), max_tokens=1)
    assert caught.value.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")


def test_leaving_a_stream_frees_the_pool(client: RadixClient) -> None:
    for _ in range(5):
        with client.stream(ids(200, 9), max_tokens=3000, ignore_eos=True) as stream:
            next(stream)
            next(stream)
    assert eventually(lambda: not (client.stats().running_requests or client.stats().active_blocks))


async def test_many_asyncio_calls_at_once(server: RunningServer) -> None:
    async with AsyncRadixClient(server.target, salt=os.urandom(8).hex()) as client:
        trunk = ids(120, 10)
        await client.warm(trunk)
        done = await asyncio.gather(*(client.generate([*trunk, *ids(4, 20 + i)], max_tokens=3) for i in range(12)))
        assert all(generation.usage.cached_tokens >= 120 for generation in done)
        async with await client.session() as session:
            await session.generate(trunk, max_tokens=2)
            assert session.tokens == 122


async def test_cancelling_an_asyncio_call_stops_the_work(server: RunningServer) -> None:
    async with AsyncRadixClient(server.target) as client:
        task = asyncio.create_task(client.generate(ids(20, 11), max_tokens=4000, ignore_eos=True))
        while not (await client.stats()).running_requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await client.stats()).running_requests:
            await asyncio.sleep(0.01)

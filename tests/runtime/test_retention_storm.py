"""Leases, holds, quotas, cuts and conversations at random, beside requests that must run whatever they do."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from radixloop.v1 import cache_pb2, common_pb2, sessions_pb2

from runtime.models.loaded_model import LoadedModel
from tests.runtime.services_harness import BLOCKS, Answer, Server, generate, ids_prompt, open_session, serving

WORKERS = 4
ROUNDS = 40
REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.slow
@pytest.mark.parametrize("eviction", ["agent", "lru"])
def test_every_request_runs_whatever_is_asked_to_be_kept(tiny: LoadedModel, eviction: str) -> None:
    # A pool that holds two of the longest requests, all of it leasable, and quotas below one of them.
    quotas = ("a=0.01", "=0.05")
    with serving(tiny, eviction=eviction, leasable_share=1.0, quota=quotas, max_running=4) as server:
        with ThreadPoolExecutor(WORKERS) as pool:
            workers = [pool.submit(_worker, server, random.Random(seed)) for seed in range(WORKERS)]
            assert sum(worker.result(timeout=200) for worker in workers) == WORKERS * ROUNDS
        stats = server.idle()
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks == BLOCKS
        assert stats.failed_total == 0
        server.cache.Flush(cache_pb2.FlushRequest())
        assert server.stats().free_blocks == BLOCKS


def _worker(server: Server, rng: random.Random) -> int:
    heads = [[head, *range(10, 200)] for head in (6, 7, 8)]
    sessions: list[str] = []
    done = 0
    while done < ROUNDS:
        salt = rng.choice([None, "a", "b"])
        length = rng.choice([5, 50, 500, 3000])
        prompt = ids_prompt(*rng.choice(heads), *(rng.randrange(10, 262) for _ in range(length)))
        space = common_pb2.Namespace(salt=salt)
        what = rng.randrange(6)
        if what == 0 or (what < 3 and not sessions):
            sessions.append(open_session(server, namespace=space))
        try:
            if what == 1 and sessions:
                _disturb(server, rng, rng.choice(sessions))
            elif what == 2 and sessions:
                _check(generate(server, ids_prompt(9, 10), 3, session_id=rng.choice(sessions)))
                done += 1
            elif what == 3:
                lease = cache_pb2.LeaseRequest(prompt=prompt, namespace=space, ttl_s=rng.choice([0.01, 60]))
                server.cache.Lease(lease)
            else:
                more = {"public_tokens": rng.choice([0, 100])} if rng.random() < 0.5 else {"conversation": "c"}
                _check(generate(server, prompt, rng.choice([1, 5]), namespace=space, **more))
                done += 1
        except grpc.RpcError as error:
            # What is asked to be kept may be refused, and a session may have nothing yet; a request may not.
            if what not in (1, 3) or error.code() not in REFUSALS:
                raise
    return done


def _check(answer: Answer) -> None:
    """The verdict covers every prompt token once, and its cached tokens are those that were used."""
    spans, usage = answer.started.verdict.spans, answer.started.usage
    ends = [0, *(span.end for span in spans)]
    assert [span.start for span in spans] == ends[:-1]
    assert ends[-1] == usage.prompt_tokens
    cached = sum(span.end - span.start for span in spans if span.cause == common_pb2.CAUSE_CACHED)
    # Alone in a full pool a request gives up the part of a block that it would have to copy.
    assert cached - 16 < usage.cached_tokens <= cached


def _disturb(server: Server, rng: random.Random, session: str) -> None:
    what = rng.randrange(4)
    if what == 0:
        server.sessions.Hold(sessions_pb2.HoldSessionRequest(session_id=session, tool=rng.choice("xyz")))
    elif what == 1:
        server.sessions.Truncate(sessions_pb2.TruncateSessionRequest(session_id=session, tokens=rng.randrange(3)))
    elif what == 2:
        server.sessions.Fork(sessions_pb2.ForkSessionRequest(session_id=session))
    else:
        server.cache.Lease(cache_pb2.LeaseRequest(session_id=session, ttl_s=60, priority=rng.randrange(101)))

"""Thousands of cancelled calls and hundreds of killed clients: nothing leaks, nobody else's tokens change."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from radixloop.v1 import cache_pb2, cache_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

CANCELLED = 2000
PROCESSES = 10
CLIENTS_EACH = 20
# Small beside what runs at once, so that the storm also evicts and preempts.
BLOCKS = 300

CLIENTS = """
import sys, threading, grpc
from radixloop.v1 import inference_pb2, inference_pb2_grpc
target, each = sys.argv[1], int(sys.argv[2])
request = inference_pb2.GenerateRequest.FromString(bytes.fromhex(sys.argv[3]))
def client(n):
    channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
    for _ in inference_pb2_grpc.InferenceStub(channel).Generate(request):
        sys.stdout.write(f"{n}\\n")
        sys.stdout.flush()
for n in range(each):
    threading.Thread(target=client, args=[n]).start()
"""


def request(trunk: int, branch: int, max_tokens: int, **more: Any) -> inference_pb2.GenerateRequest:
    """Prompts of a few trunks with a short branch each: most of them share."""
    ids = np.random.default_rng(trunk).integers(6, 262, 90).tolist()
    ids += np.random.default_rng(10_000 + branch).integers(6, 262, 15).tolist()
    return inference_pb2.GenerateRequest(
        prompt=common_pb2.Prompt(token_ids=common_pb2.TokenIds(ids=ids)),
        sampling=inference_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True, **more),
    )


def tokens(stub: inference_pb2_grpc.InferenceStub, wanted: inference_pb2.GenerateRequest) -> list[int]:
    return [token for message in stub.Generate(wanted, timeout=300) for token in message.delta.token_ids]


@pytest.fixture(scope="module")
def channel(start_server: Callable[..., Any]) -> Iterator[grpc.Channel]:
    server = start_server("--num-blocks", str(BLOCKS), "--max-queue", "4000")
    with grpc.insecure_channel(server.target) as opened:
        yield opened
    assert server.stop() == 0
    assert "Traceback" not in server.log()


def idle(channel: grpc.Channel) -> cache_pb2.GetStatsResponse:
    """Stats once nothing runs, with every block accounted for."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        stats = cache_pb2_grpc.CacheStub(channel).GetStats(cache_pb2.GetStatsRequest())
        if not stats.running_requests and not stats.waiting_requests and not stats.active_blocks:
            assert stats.free_blocks + stats.cached_blocks == stats.total_blocks == BLOCKS
            return stats
        time.sleep(0.1)
    raise AssertionError(f"still busy: {stats}")


def witnesses(channel: grpc.Channel, during: Callable[[], None]) -> None:
    """Streams that nobody cancels give the same tokens while `during` goes on as they gave alone."""
    stub = inference_pb2_grpc.InferenceStub(channel)
    wanted = [request(n % 4, 500 + n, 40, seed=n, temperature=0.7 * (n % 2)) for n in range(8)]
    alone = [tokens(stub, one) for one in wanted]
    done = threading.Event()

    def watch(n: int) -> int:
        rounds = 0
        while not done.is_set():
            assert tokens(stub, wanted[n]) == alone[n], f"witness {n} changed in round {rounds}"
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as threads:
        watching = [threads.submit(watch, n) for n in (0, 1)]
        try:
            during()
        finally:
            done.set()
        assert all(future.result() for future in watching)
    assert [tokens(stub, one) for one in wanted] == alone


def test_cancelled_calls(channel: grpc.Channel) -> None:
    stub = inference_pb2_grpc.InferenceStub(channel)
    before = idle(channel)

    def one(n: int) -> None:
        dice = random.Random(n)
        call = stub.Generate(request(dice.randrange(4), n, 200, n=dice.choice((1, 1, 3)), seed=n, temperature=1.0))
        kind = dice.random()
        if kind < 0.3:
            time.sleep(dice.random() * 0.05)
        else:
            for _ in range(dice.randrange(1, 12)):
                next(call)
        call.cancel()
        if kind > 0.8:
            call.cancel()

    def storm() -> None:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(one, range(CANCELLED)))

    witnesses(channel, storm)
    after = idle(channel)
    # A call that is cancelled before it arrives is none; the rest ended as cancelled and nothing failed.
    assert CANCELLED * 0.7 < after.cancelled_total - before.cancelled_total <= CANCELLED
    assert after.failed_total == before.failed_total
    flushed = cache_pb2_grpc.CacheStub(channel).Flush(cache_pb2.FlushRequest())
    assert flushed.freed_blocks == after.cached_blocks
    assert idle(channel).free_blocks == BLOCKS


def test_killed_clients(channel: grpc.Channel) -> None:
    before = idle(channel)
    target = channel._channel.target().decode()  # type: ignore[attr-defined]
    endless = request(1, 1, 3000, n=1).SerializeToString().hex()

    def kill_one(n: int) -> None:
        command = [sys.executable, "-c", CLIENTS, target, str(CLIENTS_EACH), endless]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            heard: set[bytes] = set()
            while len(heard) < CLIENTS_EACH:
                heard.add(process.stdout.readline())
            for _ in range(20 * n):
                process.stdout.readline()
            process.kill()

    def storm() -> None:
        for n in range(PROCESSES):
            kill_one(n)

    witnesses(channel, storm)
    after = idle(channel)
    assert after.cancelled_total - before.cancelled_total == PROCESSES * CLIENTS_EACH
    assert after.failed_total == before.failed_total

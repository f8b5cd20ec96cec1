"""SMG over two runtimes: it finds what they have cached by their events, and agents outlive one of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from agent_client import BlocksStored, RadixClient

from .conftest import RunningServer, running_server
from .router_processes import Router, running_router

pytest.importorskip("smg", reason="make test-frameworks installs it")

pytestmark = [pytest.mark.e2e, pytest.mark.router]

SESSIONS = 16
TURNS = 6
# Four desks, whose agents share a system prompt each.
DESKS = ["airline", "hotel", "bank", "library"]
AT_A_TIME = 4
RETRIES = 3


class Loops:
    """Agents' loops, each turn of which sends the whole history.

    Attributes:
        calls: that were answered.
        retried: calls that the router failed, and that the agent sent again.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self.calls = 0
        self.retried = 0

    def run(self) -> None:
        """Run all sessions to their end, some at a time."""
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for _ in pool.map(self._session, range(SESSIONS)):
                pass

    def wait_for(self, calls: int) -> None:
        """Until so many were answered."""
        with self._progress:
            assert self._progress.wait_for(lambda: self.calls >= calls, timeout=120)

    def _session(self, number: int) -> None:
        desk = DESKS[number % len(DESKS)]
        # They differ from the first block on: to the router a block in common is a reason to go there.
        system = f"{desk} desk: " + f"A rule of the {desk} that every agent must know by heart. " * 12
        messages = [{"role": "system", "content": system}]
        for turn in range(TURNS):
            asked = f"Customer {number}, question {turn}: what does the {desk} do about case {number * 31 + turn}?"
            messages.append({"role": "user", "content": asked})
            # What agents do with an answer is recorded beforehand: random weights write no text worth sending back.
            self._call(messages)
            messages.append({"role": "assistant", "content": f"The {desk} has an answer to case {number * 31 + turn}."})

    def _call(self, messages: list[dict[str, str]]) -> None:
        for attempt in range(RETRIES + 1):
            try:
                _, usage = self._router.chat(messages, max_tokens=8)
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500 or attempt == RETRIES:
                    raise AssertionError(error.response.text) from error
                with self._lock:
                    self.retried += 1
                continue
            assert usage["completion_tokens"] == 8
            with self._progress:
                self.calls += 1
                self._progress.notify_all()
            return


def reused(servers: Sequence[RunningServer]) -> tuple[int, int]:
    """Prompt tokens that were found in the caches, and all of them, by the runtimes' own books."""
    hits = prompts = 0
    for server in servers:
        with RadixClient(server.target) as client:
            stats = client.stats()
            hits, prompts = hits + stats.hit_tokens_total, prompts + stats.prompt_tokens_total
    return hits, prompts


def told_blocks(server: RunningServer) -> int:
    """The blocks that the runtime's own events name."""
    with RadixClient(server.target) as client:
        snapshot = next(iter(client.watch_events()))
    return sum(len(event.block_hashes) for event in snapshot.events if isinstance(event, BlocksStored))


def assert_idle_and_whole(server: RunningServer) -> None:
    with RadixClient(server.target) as client:
        stats = client.stats()
    assert (stats.running_requests, stats.waiting_requests, stats.active_blocks) == (0, 0, 0)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


def test_it_routes_by_the_events_and_loses_no_reuse(
    start_server: Callable[..., RunningServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = start_server("--num-blocks", "2000")
    with running_router(tmp_path, [alone.target]) as router:
        Loops(router).run()
    hits, prompts = reused([alone])
    single = hits / prompts

    pair = [start_server("--num-blocks", "2000") for _ in range(2)]
    with running_router(tmp_path, [server.target for server in pair]) as router:
        loops = Loops(router)
        loops.run()
        branches, blocks = router.branches(), router.blocks()
    hits, prompts = reused(pair)
    both = hits / prompts
    shares = [reused([server])[1] / prompts for server in pair]
    with capsys.disabled():
        print(f"\n{loops.calls} calls; hit rate {both:.1%} over two runtimes, {single:.1%} of one: {both / single:.1%}")
        print(f"prompt tokens by runtime {shares[0]:.0%} and {shares[1]:.0%}; branches of the router: {branches}")
    assert loops.calls == SESSIONS * TURNS
    assert branches["event_hit"] >= SESSIONS * (TURNS - 1)
    assert set(branches) <= {"event_hit", "event_miss", "expected_wait_fallback"}
    assert min(shares) > 0.1
    assert both >= 0.95 * single
    for server in pair:
        assert_idle_and_whole(server)
        assert blocks[server.target] == told_blocks(server) > 0


def test_a_runtime_dies_in_the_middle_and_the_loops_finish(
    start_server: Callable[..., RunningServer], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = start_server("--num-blocks", "2000")
    with (
        running_server(tmp_path / "dying", tiny_model, "--num-blocks", "2000") as dying,
        running_router(tmp_path, [left.target, dying.target], "--health-check-interval-secs", "1") as router,
    ):
        loops = Loops(router)
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(loops.run)
            loops.wait_for(SESSIONS * TURNS // 2)
            had = reused([dying])[1]
            dying.stop(signal.SIGKILL)
            running.result(240)
    with capsys.disabled():
        print(f"\n{loops.calls} calls; {loops.retried} had to be sent again by the agents; the dead had {had} tokens")
    assert loops.calls == SESSIONS * TURNS
    assert had > 0
    assert_idle_and_whole(left)


def test_a_router_that_starts_beside_warm_runtimes_knows_what_they_hold(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    pair = [start_server("--num-blocks", "2000") for _ in range(2)]
    chats = [[{"role": "user", "content": f"Conversation {i}: " + f"about matter {i}. " * 20}] for i in range(6)]
    targets = [server.target for server in pair]
    with running_router(tmp_path, targets) as router:
        for chat in chats:
            router.chat(chat, max_tokens=4)
    with running_router(tmp_path, targets) as router:
        for chat in chats:
            _, usage = router.chat(chat, max_tokens=4)
            assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
        assert router.branches()["event_hit"] == len(chats)

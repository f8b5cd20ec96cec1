"""`agent-client top`: what it draws, through restarts, in a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from agent_client import CacheNode, CacheStats, ModelInfo, RadixClient, RetryPolicy
from agent_client.commands.looks import NODES_AT_MOST, Look, Watcher
from agent_client.commands.top_screen import screen
from agent_client.errors import Unavailable
from agent_client.keeping import Lease, Leases

from ..timing import eventually
from .toy_runtime import ToyRuntime

STATS = CacheStats(**{**dict.fromkeys(CacheStats.__dataclass_fields__, 0), "tiers": ()})
MODEL = ModelInfo(
    "tiny", "Llama", 8192, 100, "float32", "cpu", 16, 100, 46080, (2,), True, "f", "sdpa", "r", "i", "0.1.0", "lean"
)


def look(
    at_s: float = 10.0, nodes: tuple[CacheNode, ...] | None = (), leases: Leases | None = None, **stats: object
) -> Look:
    return Look(at_s, MODEL, replace(STATS, **stats), nodes, leases)  # type: ignore[arg-type]


def node(id: int, parent: int, tokens: int, head: str = "", salt: str | None = None) -> CacheNode:
    return CacheNode(id, parent, salt, None, 0, tokens, 1, 7, 3.0, 0, 0, head or f"head {id}")


def shown(before: Look, now: Look, trouble: str = "", height: int | None = None) -> str:
    console = Console(file=StringIO(), width=80, record=True)
    console.print(screen("here:1", before, now, trouble, height))
    return console.export_text()


def test_rates_are_since_the_look_before() -> None:
    before = look(prompt_tokens_total=1000)
    now = look(12.0, prompt_tokens_total=1400, hit_tokens_total=300, total_blocks=100, cached_blocks=50)
    text = shown(before, now, "UNAVAILABLE: gone")
    assert "200.0" in text
    assert "150.0" in text
    assert "75.00%" in text
    assert text.count("█") == text.count("░") == 25
    assert "UNAVAILABLE: gone" in text
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_to_compare_with() -> None:
    assert "–" in shown(look(), look())


def test_leases_that_end_first_are_named() -> None:
    leases = [Lease(i, 10 * i, None, None, 50, 100.0 - i, f"lease {i}", None) for i in range(1, 6)]
    text = shown(look(), look(leases=Leases(tuple(leases), 150, 1000)))
    assert re.findall(r"lease \d", text) == ["lease 5", "lease 4", "lease 3"]
    assert "and 2 more" in text


def test_the_tree_shows_its_largest_branches_from_the_top() -> None:
    nodes = (node(1, 0, 5), node(2, 1, 1), node(3, 0, 2), node(4, 3, 900), node(5, 3, 30), node(6, 0, 40, salt="x"))
    text = shown(look(), look(nodes=nodes))
    assert re.findall(r"head \d", text) == ["head 3", "head 4", "head 5", "head 6", "head 1", "head 2"]
    assert "head 6  (salt 'x')" in text
    short = shown(look(), look(nodes=nodes), height=1)
    assert re.findall(r"head \d", short) == ["head 3", "head 4", "head 5", "head 6"]
    assert "and 2 more nodes" in short
    assert "too large to be drawn" in shown(look(), look(nodes=None))


def test_no_text_of_others_steers_the_terminal() -> None:
    hostile = "a\x1b[2J\r\n\u202e[red]b"
    text = shown(
        look(),
        look(
            nodes=(node(1, 0, 5, hostile, salt=hostile),),
            leases=Leases((Lease(1, 2, hostile, None, 50, 9.0, hostile, None),), 2, 9),
        ),
        trouble=hostile,
    )
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    # The trouble, the lease's label and salt, and the node's head; its salt is cut off at the line's end.
    assert text.count("[red]b") == 4


@contextmanager
def watching(toy: ToyRuntime) -> Iterator[Watcher]:
    options = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 100)]
    with RadixClient(toy.target, retry=RetryPolicy(max_attempts=1), options=options) as client:
        yield Watcher(client)


def test_a_runtime_that_is_started_anew_is_followed() -> None:
    toy = ToyRuntime()
    with watching(toy) as watcher:
        time.sleep(0.05)
        watcher.look_again()
        assert (watcher.trouble, watcher.now.at_s > watcher.before.at_s) == ("", True)
        toy.stop()
        watcher.look_again()
        assert "UNAVAILABLE" in watcher.trouble
        again = ToyRuntime(port=int(toy.target.rpartition(":")[2]), model="another")

        def answers() -> bool:
            watcher.look_again()
            return not watcher.trouble

        assert eventually(answers)
        again.stop()
    assert watcher.now.model.model == "another"
    # Its counters began at zero.
    assert watcher.before.stats.uptime_s == pytest.approx(watcher.now.stats.uptime_s, abs=1.0)


def test_a_large_tree_is_not_listed_and_leases_may_be_unknown(toy: ToyRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    with watching(toy) as watcher:
        assert watcher.now.leases is None
        assert watcher.now.nodes is not None
        stats = replace(watcher.now.stats, nodes=NODES_AT_MOST + 1, uptime_s=1e9)
        monkeypatch.setattr(RadixClient, "stats", lambda client: stats)
        listed = toy.calls("ListNodes")
        watcher.look_again()
        assert (watcher.now.nodes, toy.calls("ListNodes")) == (None, listed)


def test_nobody_there_at_first_is_an_error() -> None:
    toy = ToyRuntime()
    toy.stop()
    with pytest.raises(Unavailable), watching(toy):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--once",)])
def test_in_a_pipe_it_is_one_picture_without_escape_codes(toy: ToyRuntime, flags: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "agent_client", "top", "-t", toy.target, "-i", "0.1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("toy ") == 1
    assert "hello" in done.stdout
    assert "\x1b" not in done.stdout


def rest_of(terminal: int) -> bytes:
    """What comes next; nothing once the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.slow
def test_in_a_terminal_it_goes_on_until_ctrl_c(toy: ToyRuntime) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "agent_client", "top", "-t", toy.target, "-i", "0.1"]
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, stderr=subprocess.PIPE, env=settings) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"hit rate") < 3:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        while rest := rest_of(ours):
            seen += rest
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(ours)
    # The other screen was left again.
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1

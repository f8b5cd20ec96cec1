"""`agent-client top`: a runtime, live."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..access import Access
from ..client import RadixClient
from ..errors import RadixloopError
from ..results import CacheStats, ModelInfo
from ..retry import RetryPolicy
from ..words import count, duration, share
from .failures import reported
from .stats import hit_rate

_BAR = 50


@dataclass(frozen=True)
class Look:
    """One answer of the runtime, and when it came (monotonic seconds)."""

    at_s: float
    stats: CacheStats


@reported
def run(target: str, interval_s: float, access: Access | None = None) -> int:
    console = Console(highlight=False)
    once = RetryPolicy(max_attempts=1)
    with RadixClient(target, access=access, retry=once, timeout_s=max(5.0, interval_s)) as client:
        model = client.model_info()
        before = now = Look(time.monotonic(), client.stats())
        trouble = ""
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                live.update(screen(client.target, model, before, now, trouble), refresh=True)
                time.sleep(interval_s)
                try:
                    stats = client.stats()
                except RadixloopError as error:
                    trouble = str(error)
                    continue
                # A runtime that was started anew counts from zero: nothing to compare with.
                restarted = stats.uptime_s < now.stats.uptime_s
                look = Look(time.monotonic(), stats)
                before, now, trouble = (look if restarted else now), look, ""


def screen(target: str, model: ModelInfo, before: Look, now: Look, trouble: str = "") -> RenderableType:
    """The picture of one moment; rates are since the look before."""
    stats = now.stats
    span = now.at_s - before.at_s

    def rate(name: str) -> str:
        if span <= 0:
            return "–"
        return f"{(getattr(stats, name) - getattr(before.stats, name)) / span:,.1f}"

    recent_prompt = stats.prompt_tokens_total - before.stats.prompt_tokens_total
    recent_hits = stats.hit_tokens_total - before.stats.hit_tokens_total
    flow = Table.grid(padding=(0, 3))
    for _ in range(3):
        flow.add_column(justify="right")
    flow.add_row(Text("tokens", style="dim"), Text("per second", style="dim"), Text("since start", style="dim"))
    for label, name in (
        ("prompt", "prompt_tokens_total"),
        ("from the cache", "hit_tokens_total"),
        ("computed", "computed_tokens_total"),
        ("written", "output_tokens_total"),
        ("evicted", "evicted_tokens_total"),
    ):
        flow.add_row(label, rate(name), count(getattr(stats, name)))
    recent = share(recent_hits / recent_prompt) if recent_prompt else "–"
    flow.add_row("hit rate", recent, share(hit_rate(stats)))
    state = Table.grid(padding=(0, 2))
    state.add_column(style="dim")
    running = (
        f"{stats.running_requests} running, {stats.waiting_requests} waiting, {count(stats.requests_total)} so far"
    )
    state.add_row("requests", running)
    state.add_row(
        "",
        f"{count(stats.cancelled_total)} cancelled, {count(stats.failed_total)} failed, "
        f"{count(stats.preemptions_total)} preempted",
    )
    state.add_row("sessions", f"{count(stats.sessions)} open")
    state.add_row("pool", _pool_bar(stats))
    state.add_row("", _pool_legend(stats))
    state.add_row("tree", f"{count(stats.cached_tokens)} tokens in {count(stats.nodes)} nodes, {stats.max_depth} deep")
    state.add_row("", f"{count(stats.namespaces)} namespaces, {count(stats.unused_slots)} slots unused")
    title = Text.assemble((model.model, "bold"), f"  {target}  up {duration(stats.uptime_s)}")
    lines: list[RenderableType] = [title, Text(), state, Text(), flow]
    if trouble:
        lines += [Text(), Text(trouble, style="red")]
    return Group(*lines)


def _pool_bar(stats: CacheStats) -> Text:
    total = max(1, stats.total_blocks)
    used = round(_BAR * stats.active_blocks / total)
    cached = min(_BAR - used, round(_BAR * stats.cached_blocks / total))
    return Text.assemble(("█" * used, "yellow"), ("█" * cached, "cyan"), ("░" * (_BAR - used - cached), "dim"))


def _pool_legend(stats: CacheStats) -> Text:
    return Text.assemble(
        f"{count(stats.total_blocks)} blocks: ",
        (f"{count(stats.active_blocks)} in use", "yellow"),
        ", ",
        (f"{count(stats.cached_blocks)} cached", "cyan"),
        f", {count(stats.free_blocks)} free",
    )

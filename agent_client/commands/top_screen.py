"""What `agent-client top` draws of a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..results import CacheNode, CacheStats
from ..words import count, counted, duration, namespace_name, printable, share
from .looks import Look
from .stats import hit_rate

_BAR = 50
_LEASES_SHOWN = 3
# Lines of a picture above the tree, the most that there can be.
_LINES_ABOVE = 26
_FEWEST_ROWS = 4
_ROWS_UNLIMITED = 12


def screen(target: str, before: Look, now: Look, trouble: str = "", height: int | None = None) -> RenderableType:
    """Rates are since the look before. `height` is how many lines there are; None where nobody minds."""
    stats = now.stats
    title = Text.assemble((now.model.model, "bold"), f"  {target}  up {duration(stats.uptime_s)}")
    rows = _ROWS_UNLIMITED if height is None else max(_FEWEST_ROWS, height - _LINES_ABOVE)
    parts: list[RenderableType] = [title]
    if trouble:
        parts.append(Text(printable(trouble), style="red"))
    parts += [Text(), _state(now), Text(), _flow(before, now), Text(), _tree(now, rows)]
    return Group(*parts)


def _state(now: Look) -> Table:
    stats = now.stats
    state = Table.grid(padding=(0, 2))
    state.add_column(style="dim")
    running = f"{stats.running_requests} running, {stats.waiting_requests} waiting"
    state.add_row("requests", f"{running}, {count(stats.requests_total)} so far")
    ended = f"{count(stats.cancelled_total)} cancelled, {count(stats.failed_total)} failed"
    state.add_row("", f"{ended}, {count(stats.preemptions_total)} preempted")
    state.add_row("sessions", f"{count(stats.sessions)} open, {count(stats.tool_holds_total)} tool holds so far")
    state.add_row("pool", _pool_bar(stats))
    state.add_row("", _pool_legend(stats))
    covered = f"{count(stats.leased_tokens)} of {count(stats.leasable_tokens)} leasable tokens"
    state.add_row("leases", f"{count(stats.leases)} on {covered}, {count(stats.lease_refusals_total)} refused")
    for line in _leases(now):
        state.add_row("", line)
    return state


def _leases(now: Look) -> Iterator[Text]:
    leases = now.leases.leases if now.leases is not None else ()
    # Those that end first.
    for lease in sorted(leases, key=lambda lease: lease.ttl_s)[:_LEASES_SHOWN]:
        label = f"{lease.label}, " if lease.label else ""
        name = namespace_name(lease.salt, lease.adapter)
        yield Text(printable(f"{count(lease.tokens)} tokens for {duration(lease.ttl_s)}: {label}{name}"))
    if len(leases) > _LEASES_SHOWN:
        yield Text(f"and {len(leases) - _LEASES_SHOWN:,} more", style="dim")


def _flow(before: Look, now: Look) -> Table:
    stats, span = now.stats, now.at_s - before.at_s

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
    return flow


def _tree(now: Look, rows: int) -> RenderableType:
    stats = now.stats
    told = f"{counted(stats.cached_tokens, 'token')} in {counted(stats.nodes, 'node')}"
    told += f" of {counted(stats.namespaces, 'namespace')}, {stats.max_depth} deep"
    title = f"tree: {told}, {counted(stats.unused_slots, 'slot')} unused"
    if now.nodes is None:
        return Text(f"{title}\ntoo large to be drawn all the time: see agent-client nodes", style="dim")
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="dim", expand=True, padding=(0, 1)
    )
    for heading in ("tokens", "hits", "idle", "held"):
        table.add_column(heading, justify="right", no_wrap=True, header_style="dim")
    table.add_column("begins with", no_wrap=True, overflow="ellipsis", ratio=1, header_style="dim")
    for node, depth in _largest_first(now.nodes, rows):
        head = "  " * depth + printable(node.head)
        if not depth and node.salt is not None:
            head = f"{head}  ({namespace_name(node.salt, node.adapter)})"
        held = Text(f"{node.holders}", style="yellow") if node.holders else Text("–", style="dim")
        table.add_row(count(node.tokens), count(node.hits), duration(node.idle_s), held, Text(head))
    if len(now.nodes) > rows:
        table.add_row("", "", "", "", Text(f"and {len(now.nodes) - rows:,} more nodes", style="dim"))
    return table


def _largest_first(nodes: Sequence[CacheNode], rows: int) -> list[tuple[CacheNode, int]]:
    """The first `rows` nodes from the top down, each branch before those that hold fewer tokens; and their depths."""
    children: dict[int, list[CacheNode]] = {}
    below: dict[int, int] = {}
    for node in nodes:
        children.setdefault(node.parent_id, []).append(node)
    # Parents come first: from the end, every node's branches are summed before it is.
    for node in reversed(nodes):
        below[node.id] = node.tokens + sum(below[child.id] for child in children.get(node.id, ()))
    chosen: list[tuple[CacheNode, int]] = []
    stack = [(node, 0) for node in sorted(children.get(0, ()), key=lambda node: below[node.id])]
    while stack and len(chosen) < rows:
        node, depth = stack.pop()
        chosen.append((node, depth))
        stack += [(child, depth + 1) for child in sorted(children.get(node.id, ()), key=lambda node: below[node.id])]
    return chosen


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

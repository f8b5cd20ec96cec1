"""Runtimes and their trees as they look in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from radix.inspect import Branch, RuntimeView, build_forest
from radix.sizes import counted

_BAR_CELLS = 30
_ALL_DEPTHS = _ALL_ROWS = 1 << 30


@dataclass(frozen=True)
class Cut:
    """How much of a tree is drawn.

    Attributes:
        depth: levels, None for all.
        rows: lines over all trees, None for no limit.
    """

    depth: int | None = None
    rows: int | None = None


def render(views: Sequence[RuntimeView], cut: Cut) -> RenderableType:
    """Each runtime's header and tree, in order; the rows are shared out among those that have a tree."""
    trees = sum(1 for view in views if view.nodes)
    rows = None if cut.rows is None else max(1, cut.rows // max(1, trees))
    parts: list[RenderableType] = []
    for view in views:
        parts.append(_header(view))
        parts.append(_tree(view, Cut(cut.depth, rows)))
    return Group(*parts)


def rows_that_fit(console: Console, views: Sequence[RuntimeView]) -> int:
    """`Cut.rows` with which `render` fills the terminal and no more, at least 1."""
    headers = sum(len(console.render_lines(_header(view))) for view in views)
    # Column names and the line that counts the rest, or the two lines of an empty tree.
    return max(1, console.height - headers - 2 * len(views))


def _header(view: RuntimeView) -> Panel:
    told = view.registration
    precision = " on ".join(value for value in (told.get("dtype", ""), told.get("device", "")) if value)
    kv_dtype = told.get("kv_dtype", "")
    what = [told.get("name", ""), precision, f"KV {kv_dtype}" if kv_dtype and kv_dtype != told.get("dtype") else ""]
    lines = [
        _joined(part for part in what if part),
        _joined(_life(view)),
        _pool_line(view),
        _joined(_reuse(view)),
    ]
    body = Table.grid(padding=(0, 1))
    body.add_column(style="dim", no_wrap=True)
    body.add_column(overflow="fold")
    for name, line in zip(("model", "runtime", "pool", "reuse"), lines, strict=True):
        body.add_row(name, line)
    return Panel(
        body, title=Text(view.runtime_id, style="bold"), title_align="left", border_style="cyan", padding=(0, 1)
    )


def _life(view: RuntimeView) -> Iterator[str]:
    if target := view.registration.get("grpc"):
        yield target
    if started := view.number("started_at"):
        yield f"up {duration(view.read_at - started)}"
    yield f"lease {duration(view.lease_left_s)} left of {duration(view.number('lease_s'))}"
    if tree_at := view.number("tree_at"):
        yield f"tree as of {duration(view.read_at - tree_at)} ago"
    yield f"incarnation {view.registration.get('incarnation', '?')[:8]}"


def _pool_line(view: RuntimeView) -> Text:
    total, active, cached = (int(view.number(name)) for name in ("total_blocks", "active_blocks", "cached_blocks"))
    line = Text()
    if total:
        in_use = min(_BAR_CELLS, -(-active * _BAR_CELLS // total))
        kept = min(_BAR_CELLS - in_use, -(-cached * _BAR_CELLS // total))
        line.append("█" * in_use, "yellow").append("█" * kept, "green")
        line.append("░" * (_BAR_CELLS - in_use - kept), "dim").append("  ")
    line.append_text(
        _joined(
            [
                f"{total:,} blocks × {int(view.number('block_size'))}",
                f"{active:,} in use",
                f"{cached:,} cached",
                f"{int(view.number('free_blocks')):,} free",
                f"{int(view.number('cached_tokens')):,} tokens in {int(view.number('nodes')):,} nodes",
                f"{int(view.number('unused_slots')):,} slots unused",
            ]
        )
    )
    return line


def _reuse(view: RuntimeView) -> Iterator[str]:
    asked = view.number("lookup_tokens")
    if asked:
        found = view.number("hit_tokens")
        yield f"{100 * found / asked:.1f} % of {int(asked):,} prompt tokens were cached"
        for tier in ("host", "disk"):
            if fetched := int(view.number(f"{tier}_hit_tokens")):
                yield f"{fetched:,} of them from the {tier} tier"
    else:
        yield "no prompt yet"
    yield f"{int(view.number('evicted_tokens')):,} evicted"
    if leases := int(view.number("leases")):
        yield f"{counted(leases, 'lease')} on {counted(int(view.number('leased_tokens')), 'token')}"
    yield f"{int(view.number('running'))} running"
    yield f"{int(view.number('waiting'))} waiting"
    yield counted(view.sessions, "session")


def _joined(parts: Iterator[str] | list[str]) -> Text:
    return Text(" · ").join([Text(part) for part in parts])


def _tree(view: RuntimeView, cut: Cut) -> RenderableType:
    if not view.nodes:
        return Text("nothing is cached\n", style="dim")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    for name in ("tokens", "blocks", "hits", "idle", "held"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("prefix", no_wrap=True, overflow="ellipsis", ratio=1)
    forest = build_forest(view.nodes)
    named = len(forest) > 1 or "default" not in forest
    left = _ALL_ROWS if cut.rows is None else cut.rows
    shown = 0
    for label, tops in forest.items():
        if named and left > 0:
            left -= 1
            tokens = sum(top.node.tokens + top.below_tokens for top in tops)
            table.add_row(f"{tokens:,}", "", "", "", "", Text(f"namespace {printable(label)}", style="bold magenta"))
        for guide, branch, hidden in _walk(tops, cut.depth):
            if left <= 0:
                break
            left -= 1
            if hidden:
                shown += branch.below_nodes
                table.add_row(f"{branch.below_tokens:,}", "", "", "", "", _hidden_text(guide, branch), style="dim")
            else:
                shown += 1
                table.add_row(*_cells(view, branch), _prefix_text(guide, branch))
    if shown < len(view.nodes):
        rest = f"… {len(view.nodes) - shown:,} more nodes: --rows 0 draws all, --depth N fewer levels"
        table.add_row("", "", "", "", "", Text(rest, style="dim italic"))
    return table


def _walk(tops: list[Branch], depth: int | None) -> Iterator[tuple[str, Branch, bool]]:
    """Branches from top to bottom with the guide before each; True marks the stand-in for what a depth limit hides."""
    deepest = _ALL_DEPTHS if depth is None else depth
    # Without recursion: a tree may be deeper than Python's stack.
    stack = [(top, "", "", 1) for top in reversed(tops)]
    while stack:
        branch, guide, below, level = stack.pop()
        yield guide, branch, False
        if not branch.children:
            continue
        if level >= deepest:
            yield below + "└ ", branch, True
            continue
        last = branch.children[-1]
        for child in reversed(branch.children):
            corner, rail = ("└ ", "  ") if child is last else ("├ ", "│ ")
            stack.append((child, below + corner, below + rail, level + 1))


def _cells(view: RuntimeView, branch: Branch) -> tuple[Text, ...]:
    node = branch.node
    return (
        Text(f"{node.tokens:,}", style="cyan"),
        Text(f"{node.blocks:,}"),
        Text(f"{node.hits:,}", style="green" if node.hits else "dim"),
        Text(duration(view.read_at - node.last_used), style="dim"),
        Text(f"{node.holders}", style="bold yellow") if node.holders else Text("-", style="dim"),
    )


def _prefix_text(guide: str, branch: Branch) -> Text:
    return Text(guide, style="dim").append(printable(branch.node.head) or "(no text)", style="default not dim")


def _hidden_text(guide: str, branch: Branch) -> Text:
    return Text(f"{guide}… {counted(branch.below_nodes, 'node')} below")


def printable(text: str) -> str:
    """Prompt text as one line that cannot steer the terminal: line ends as ⏎, control characters as ·."""
    return "".join(char if char.isprintable() else "⏎" if char == "\n" else "·" for char in text)


def duration(seconds: float) -> str:
    """Seconds as people say them: 0.3s, 12s, 5m, 3h, 2d."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"

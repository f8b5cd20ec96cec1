"""`agent-client nodes`: the cached tree, drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ..access import Access
from ..client import RadixClient
from ..results import CacheNode
from ..retry import RetryPolicy
from ..words import count, duration, namespace_name
from .failures import reported


@reported
def run(target: str, salt: str | None, head_tokens: int, as_json: bool, access: Access | None = None) -> int:
    with RadixClient(target, salt=salt, access=access, retry=RetryPolicy(max_attempts=1)) as client:
        nodes = client.nodes(all_namespaces=salt is None, head_tokens=head_tokens)
        if as_json:
            for node in nodes:
                print(json.dumps(asdict(node), ensure_ascii=False))
            return 0
        trees = draw(nodes)
    console = Console(highlight=False)
    if not trees:
        console.print("nothing is cached")
    for tree in trees:
        console.print(tree)
    return 0


def draw(nodes: Iterable[CacheNode]) -> list[Tree]:
    """One tree a namespace, from nodes that come parents first."""
    roots: dict[tuple[str | None, str | None], Tree] = {}
    by_id: dict[int, Tree] = {}
    for node in nodes:
        space = (node.salt, node.adapter)
        if space not in roots:
            roots[space] = Tree(Text(namespace_name(*space), style="bold"), guide_style="dim")
        parent = by_id.get(node.parent_id, roots[space])
        by_id[node.id] = parent.add(_label(node))
    return list(roots.values())


def _label(node: CacheNode) -> Text:
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(f"{count(node.tokens)} tokens", style="cyan")
    label.append(f"  hits {count(node.hits)}  idle {duration(node.idle_s)}", style="dim")
    if node.holders:
        label.append(f"  in use by {node.holders}", style="yellow")
    if node.head:
        label.append("  " + json.dumps(node.head, ensure_ascii=False)[1:-1])
    return label

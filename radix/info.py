"""What the store tells about itself, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from radix.namespace import Namespace
from radix.node import Node
from radix.tokens import Ints
from radix.tree import RadixTree


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the KV of the first `tokens` slots of block `src` to block `dst`, before the next forward pass."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node of the tree.

    Attributes:
        parent_id: 0 for a node right below a root.
        start: position of the run's first token.
        tokens: length of the run.
        last_used: on the store's clock, seconds.
        holders: open sequences that read to somewhere in this run.
        head: int32[<= head_tokens], the run's first tokens.
    """

    id: int
    parent_id: int
    namespace: Namespace
    start: int
    tokens: int
    blocks: int
    hits: int
    last_used: float
    holders: int
    children: int
    head: Ints


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Blocks, tree and counters since the store was made; tokens unless the name says otherwise.

    Attributes:
        active_blocks: held by open sequences; cannot be evicted now.
        cached_blocks: held by the tree alone.
        leaving_blocks: evicted, and held until they are copied out.
        max_depth: nodes on the longest path; of a large tree, as of when an eighth of it last changed.
        shared_blocks: that open sequences would hold beside those that they do if none of them shared any.
        unused_slots: slots of held blocks that hold no token of their own (unwritten, or copied from a parent's block).
    """

    total_blocks: int
    free_blocks: int
    active_blocks: int
    cached_blocks: int
    block_size: int
    cached_tokens: int
    nodes: int
    max_depth: int
    namespaces: int
    open_sequences: int
    evicted_tokens: int
    evicted_blocks: int
    copied_tokens: int
    unused_slots: int
    shared_blocks: int
    leaving_blocks: int
    leases: int
    leased_tokens: int


def node_info(node: Node, namespace: Namespace, head_tokens: int) -> NodeInfo:
    """Describe a node."""
    first = node.marks[0]
    return NodeInfo(
        id=node.id,
        parent_id=node.parent.id if node.parent is not None else 0,
        namespace=namespace,
        start=node.start,
        tokens=len(node.tokens),
        blocks=len(node.blocks),
        hits=first.hits,
        last_used=first.last_used,
        holders=len(node.users),
        children=len(node.children),
        head=node.tokens.view[:head_tokens].copy(),
    )


def nodes_of(tree: RadixTree, namespaces: Iterable[Namespace], head_tokens: int) -> Iterator[NodeInfo]:
    """Describe the nodes of namespaces, parents first; of one that is not there, none."""
    for namespace in namespaces:
        root = tree.roots.get(namespace)
        for node in tree.below(root) if root is not None else ():
            yield node_info(node, namespace, head_tokens)

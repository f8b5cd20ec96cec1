"""What a page shows of a run beside the report's figures: its calls, the tree of its prompts, texts that diverged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ..errors import RadixloopError
from ..replay.records import Run
from .partings import Parting, partings
from .prefix_tree import TreeNode, prompt_tree
from .tree_rows import shown_nodes

PARTINGS_SHOWN = 12


@dataclass(frozen=True)
class Material:
    """`texts_missing`: the runtime did not decode (all of) them, with its reason."""

    run: Run
    tree: list[TreeNode]
    partings: list[Parting]
    texts_missing: str | None = None


async def gather(run: Run, decode: Callable[[Sequence[int]], Awaitable[str]]) -> Material:
    """`decode` asks the runtime for the text of token ids. A runtime that is gone leaves a page without texts."""
    tree, parted = prompt_tree(run.records), partings(run.records, PARTINGS_SHOWN)
    try:
        for node in shown_nodes(tree):
            node.head = await decode(node.head_ids)
        for parting in parted:
            parting.shared = await decode(parting.shared_ids) if parting.shared_ids else ""
            parting.sent = await decode(parting.sent_ids)
            parting.stored = tuple([await decode(ids) for ids in parting.stored_ids])
    except RadixloopError as error:
        return Material(run, tree, parted, str(error))
    return Material(run, tree, parted)

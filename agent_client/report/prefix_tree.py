"""The tree that the prompts of a run form: what they share, and how often each part of it was computed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..prefixes import common_prefix
from ..replay.records import CallRecord

_TOKEN_BYTES = 4
HEAD_TOKENS = 24


@dataclass(eq=False)
class TreeNode:
    """Tokens `start` to `end - 1` of all prompts that go through here, between two branch points.

    `calls` is how many prompts do, `computed` the tokens of this stretch that they put through a forward pass, all
    calls together. `prompt_ends` are the positions in it (its end included) where prompts ended. `head` is the text
    of its first tokens, once somebody decoded `head_ids`.
    """

    start: int
    end: int
    tokens: bytes
    parent: TreeNode | None = None
    calls: int = 0
    computed: int = 0
    prompt_ends: set[int] = field(default_factory=set)
    children: list[TreeNode] = field(default_factory=list)
    head: str = ""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def head_ids(self) -> array[int]:
        ids = array("i")
        ids.frombytes(self.tokens[self.start * _TOKEN_BYTES : min(self.end, self.start + HEAD_TOKENS) * _TOKEN_BYTES])
        return ids

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below it, parents first. Without recursion: histories may branch deeply."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


def prompt_tree(records: Iterable[CallRecord]) -> list[TreeNode]:
    """The top nodes for the prompts of finished calls.

    All `computed` together are the run's computed tokens, but for what a preempted call computed again.
    """
    sent = [record for record in records if record.finished and record.prompt_ids]
    # In sorted order a prompt shares its longest head with the one before.
    prompts = sorted({record.prompt_ids.tobytes() for record in sent})
    root = TreeNode(0, 0, b"")
    path = [root]
    ends: dict[bytes, TreeNode] = {}
    before = b""
    for prompt in prompts:
        _climb(path, common_prefix(before, prompt) // _TOKEN_BYTES)
        leaf = TreeNode(path[-1].end, len(prompt) // _TOKEN_BYTES, prompt, path[-1])
        path[-1].children.append(leaf)
        path.append(leaf)
        ends[prompt] = leaf
        before = prompt
    for record in sent:
        _count(ends[record.prompt_ids.tobytes()], record)
    for node in root.walk():
        # The walk looks at a node's children after this: it never visits one that was taken in.
        _join_only_child(node, root)
    return root.children


def _climb(path: list[TreeNode], depth: int) -> None:
    """Cuts `path` back to a node that ends at `depth`; where none does, splits the one that goes on beyond it."""
    beyond = path[-1]
    while path[-1].end > depth:
        beyond = path.pop()
    above = path[-1]
    if above.end == depth:
        return
    upper = TreeNode(above.end, depth, beyond.tokens, above, children=[beyond])
    above.children[-1] = upper
    beyond.start, beyond.parent = depth, upper
    path.append(upper)


def _count(last: TreeNode, record: CallRecord) -> None:
    length = last.end
    last.prompt_ends.add(length)
    computed_from = length - record.usage.computed_tokens
    node: TreeNode | None = last
    while node is not None:
        node.calls += 1
        node.computed += max(0, node.end - max(node.start, computed_from))
        node = node.parent


def _join_only_child(node: TreeNode, root: TreeNode) -> None:
    """A node that only goes on is no branch point: it takes the rest of the chain into itself."""
    while node is not root and len(node.children) == 1:
        child = node.children[0]
        node.end, node.tokens, node.children = child.end, child.tokens, child.children
        node.calls = max(node.calls, child.calls)
        node.computed += child.computed
        node.prompt_ends |= child.prompt_ends
        for grandchild in child.children:
            grandchild.parent = node

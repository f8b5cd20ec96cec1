"""The history's answers stay small however much grew beside a prompt."""

from __future__ import annotations

import numpy as np

from radix import Namespace
from radix.cuts import CutLog
from radix.history import History
from radix.marks import Mark
from radix.node import Node

SPACE = Namespace("f")


def test_of_many_branches_the_last_few_are_told() -> None:
    history = History(100_000)
    for branch in range(100):
        history.close(history.open(np.array([1, 2, 3, 100 + branch, 7], np.int32), SPACE))
    length, beside = history.lookup(np.array([1, 2, 3, 4], np.int32), SPACE, head=1)
    assert length == 3
    told = [int(head[0]) for head in beside]
    assert told[0] == 199
    assert sorted(told) == list(range(200 - len(told), 200))
    assert len(told) < 20


def test_two_places_that_become_one_remember_no_more_cuts_than_one() -> None:
    log = CutLog(lambda: 0.0, lambda node: SPACE)
    root = Node(0, None, 0, np.empty(0, np.int32), np.empty(0, np.int32))
    upper = Node(1, root, 0, np.arange(1_000, dtype=np.int32), np.zeros(1, np.int32))
    lower = Node(2, upper, 1_000, np.arange(1_000, 2_000, dtype=np.int32), np.zeros(1, np.int32))
    for node in (upper, lower):
        node.marks = [Mark(node.end, 0.0, False)]
        for end in range(node.end - 1, node.start, -1):
            log.trimming(node, end)

    def known() -> list[int]:
        return [end for end in range(2_000) if log.find(upper, SPACE, end, end) is not None]

    one_place = known()
    assert 0 < len(one_place) < 1_000
    log.merged(upper, lower)
    assert len(known()) == len(one_place)
    # Those behind the node that was taken over are the ones that can still be asked for.
    assert min(known()) > 1_000

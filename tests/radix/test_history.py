"""The history's answers stay small however much grew beside a prompt."""

from __future__ import annotations

import numpy as np

from radix import Namespace
from radix.history import History

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

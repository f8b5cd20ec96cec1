"""In which formats a model's weights lie, in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

from runtime.models.linear_groups import GroupMember
from runtime.native.weights import Format

_MIB = 1 << 20


def weight_report(network: Any) -> str:
    """Of the matrices that our own products read: `106M numbers in 4-bit groups, …: 92 MiB instead of 513`.

    The dtype where there are none.
    """
    groups = {module.group for module in network.modules() if isinstance(module, GroupMember)}
    panels = [group.panels for group in groups if group.panels is not None]
    if not panels:
        return str(network.dtype).removeprefix("torch.")
    numbers: Counter[Format] = Counter()
    for found in panels:
        numbers.update(found.numbers)
    parts = [f"{_count(numbers[kind])} numbers in {kind.title}" for kind in Format if numbers[kind]]
    taken = sum(found.data.numel() for found in panels) / _MIB
    plain = sum(numbers.values()) * 4 / _MIB
    return f"{', '.join(parts)}: {taken:.0f} MiB instead of {plain:.0f}"


def _count(numbers: int) -> str:
    if numbers < 1e6:
        return f"{numbers / 1e3:.0f}k"
    return f"{numbers / 1e6:.0f}M"

"""Blocks that left the device and are not forgotten: an index by content over tiers, each slower and larger."""

from __future__ import annotations

from radix.cold.demoter import Demoter, Demotion
from radix.cold.digests import scope_of
from radix.cold.entry import Entry
from radix.cold.index import ColdIndex, Hit, Move
from radix.cold.tier import ColdTier

__all__ = ["ColdIndex", "ColdTier", "Demoter", "Demotion", "Entry", "Hit", "Move", "scope_of"]

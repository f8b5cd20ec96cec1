"""What a full tier keeps of that which nearer ones hold too."""

from __future__ import annotations

import pytest

from radix import Namespace
from radix.cold import ColdIndex, ColdTier, Entry, scope_of
from radix.cold.invariants import check_cold

SCOPE = scope_of(Namespace("w"))


class Disk:
    """A tier of four blocks, full of blocks 0 to 3 of which nobody else has any."""

    def __init__(self, spares_kept: int) -> None:
        self.now = 0.0
        self.tier = ColdTier("disk", 4, keeps_promoted=True, spares_kept=spares_kept)
        self.index = ColdIndex(1, [self.tier], clock=lambda: self.now)
        for n in range(4):
            self.put(n)

    def ask(self, n: int, *, spare: bool = False, keep_until: float = 0.0) -> Entry | None:
        return self.index.store(bytes([n] * 16), SCOPE, bytes([n] * 4), tier=0, spare=spare, keep_until=keep_until)

    def put(self, n: int, *, spare: bool = False, keep_until: float = 0.0) -> Entry | None:
        entry = self.ask(n, spare=spare, keep_until=keep_until)
        if entry is not None:
            self.index.landed(entry, 0, spare=spare)
        check_cold(self.index)
        return entry

    def make_spare(self, *numbers: int) -> None:
        for entry in list(self.index.all()):
            if entry.tokens[0] in numbers:
                self.tier.queue(entry, spare=True)

    @property
    def held(self) -> list[int]:
        return sorted(entry.tokens[0] for entry in self.index.all())


def test_a_copy_takes_the_place_of_what_was_used_longest_ago_as_long_as_there_are_few() -> None:
    disk = Disk(4)
    assert disk.put(4, spare=True) is not None
    assert disk.put(5, spare=True) is not None
    assert disk.put(6, spare=True) is None
    assert disk.held == [2, 3, 4, 5]


def test_where_none_is_kept_copies_take_no_place_and_go_first() -> None:
    disk = Disk(0)
    assert disk.put(4, spare=True) is None
    disk.make_spare(3)
    disk.put(5)
    assert disk.held == [0, 1, 2, 5]
    # The device has what went.
    assert disk.tier.lost == 0
    disk.put(6)
    assert disk.held == [1, 2, 5, 6]
    assert disk.tier.lost == 1


def test_what_comes_down_takes_the_place_of_the_rest_and_then_of_copies() -> None:
    disk = Disk(2)
    disk.make_spare(0, 1)
    disk.put(6)
    disk.put(7)
    assert disk.held == [0, 1, 6, 7]
    # Three copies now: one more than is kept.
    disk.make_spare(6)
    disk.put(8)
    assert disk.held == [1, 6, 7, 8]


def test_a_copy_that_the_device_lost_is_the_rest_s_and_needs_no_writing() -> None:
    disk = Disk(1)
    disk.put(4, spare=True)
    assert disk.put(4) is None
    assert disk.put(5, spare=True) is not None
    assert disk.held == [2, 3, 4, 5]


@pytest.mark.parametrize("leased", [False, True])
def test_a_copy_takes_no_place_of_a_lease(leased: bool) -> None:
    disk = Disk(2)
    for n in range(4):
        disk.put(n + 10, keep_until=5.0 if leased else 0.0)
    assert (disk.put(4, spare=True) is None) == leased


def test_copies_that_are_on_their_way_count() -> None:
    disk = Disk(4)
    on_their_way = [disk.ask(4, spare=True), disk.ask(5, spare=True)]
    assert None not in on_their_way
    assert disk.ask(6, spare=True) is None
    for entry in on_their_way:
        disk.index.landed(entry, 0, ok=False, spare=True)
    assert disk.ask(6, spare=True) is not None


def test_a_copy_of_what_the_device_lost_meanwhile_is_the_rest_s() -> None:
    disk = Disk(2)
    entry = disk.ask(4, spare=True)
    # Evicted, and not to be written once more.
    assert disk.put(4) is None
    disk.index.landed(entry, 0, spare=True)
    check_cold(disk.index)
    assert entry in disk.tier.primary
    assert disk.put(5, spare=True) is not None


@pytest.mark.parametrize("memory_first", [True, False])
@pytest.mark.parametrize("memory_gives_up", [True, False])
def test_a_copy_of_what_went_to_memory_meanwhile_is_spare_as_long_as_memory_has_it(
    memory_first: bool, memory_gives_up: bool
) -> None:
    host, tier = ColdTier("host", 1), ColdTier("disk", 4, keeps_promoted=True, spares_kept=4)
    index = ColdIndex(1, [host, tier], clock=lambda: 0.0)
    entry = index.store(bytes(16), SCOPE, bytes(4), tier=1, spare=True)
    assert entry is not None
    assert index.store(bytes(16), SCOPE, bytes(4), tier=0) is entry
    landings = [lambda: index.landed(entry, 0), lambda: index.landed(entry, 1, spare=True)]
    for land in landings if memory_first else reversed(landings):
        land()
        check_cold(index)
        if memory_gives_up and entry.is_ready(0):
            # What lies on disk, or is about to, is copied down no more.
            assert list(index.spill(1)) == []
    check_cold(index)
    assert entry in (tier.primary if memory_gives_up else tier.spare)

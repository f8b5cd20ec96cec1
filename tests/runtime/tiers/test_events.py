"""Who listens to KV events knows what lies in which tier."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from radix import BlockRemoved, BlockStored
from runtime.models.loaded_model import LoadedModel
from runtime.publishing.event_stream import snapshot_messages
from runtime.publishing.kv_events import KvEventHub, medium_in
from runtime.publishing.zmq_wire import encode_batch
from runtime.tiers.settings import TierSettings
from tests.runtime.engine_harness import Harness
from tests.runtime.tiers.harness import MIB, prompts, settle, tiered

Places = dict[str, set[int]]


def listen(harness: Harness) -> KvEventHub:
    hub = KvEventHub("incarnation")
    assert harness.engine.tiers is not None
    hub.behind = harness.engine.tiers.announcer()
    harness.engine.after_step.append(hub.collect)
    return hub


def heard(hub: KvEventHub) -> Places:
    """What is where, by the events since the start."""
    places: Places = {"device": set(), "host": set(), "disk": set()}
    for batch in hub.batches(0, 10**6):
        for event in batch.events:
            if isinstance(event, BlockStored):
                assert places[event.tier].isdisjoint(event.block_hashes)
                places[event.tier].update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                assert places[event.tier].issuperset(event.block_hashes)
                places[event.tier].difference_update(event.block_hashes)
    return places


def ever_cached(hub: KvEventHub) -> set[int]:
    """Every block that the pool had at any time."""
    events = (event for batch in hub.batches(0, 10**6) for event in batch.events)
    stored = (event for event in events if isinstance(event, BlockStored) and event.tier == "device")
    return {h for event in stored for h in event.block_hashes}


def test_a_block_goes_by_one_hash_through_the_tiers(tmp_path: Path, tiny: LoadedModel) -> None:
    settings = TierSettings(host_bytes=MIB, disk=tmp_path, disk_bytes=MIB)
    with tiered(tiny, settings, record_events=True) as harness:
        hub = listen(harness)
        work = prompts(6)
        for tokens in work:
            harness.run(tokens, max_tokens=1)
        settle(harness)
        places = heard(hub)
        assert places["host"]
        assert places["disk"]
        # All that was ever cached is somewhere, under the name that it had in the pool.
        assert places["device"] | places["host"] | places["disk"] == ever_cached(hub)
        assert places["device"].isdisjoint(places["host"])
        snapshot = harness.engine.call(hub.snapshot).result()
        assert {(event.tier, h) for event in snapshot.events for h in event.block_hashes} == {
            (tier, h) for tier, hashes in heard(hub).items() for h in hashes
        }
        # Back in the pool, it is in host memory no more.
        before = heard(hub)["device"]
        harness.run(work[0], max_tokens=1)
        settle(harness)
        fetched = heard(hub)["device"] - before
        assert fetched & places["host"]
        assert heard(hub)["host"].isdisjoint(heard(hub)["device"])
        harness.flush()
        settle(harness)
        assert heard(hub) == {"device": set(), "host": set(), "disk": set()}


def test_what_was_there_before_is_told_when_its_namespace_is_used(tmp_path: Path, tiny: LoadedModel) -> None:
    settings = TierSettings(disk=tmp_path, disk_bytes=MIB)
    work = prompts(2)
    with tiered(tiny, settings, record_events=True) as harness:
        hub = listen(harness)
        harness.run(work[0], max_tokens=1)
        settle(harness)
        known = heard(hub)["disk"]
        assert known
    with tiered(tiny, settings, record_events=True) as harness:
        hub = listen(harness)
        harness.run(work[1], max_tokens=1)
        settle(harness)
        assert heard(hub)["disk"] >= known


@pytest.mark.parametrize(
    ("device", "names"),
    [("GPU", ("GPU", "CPU", "DISK")), ("CPU", ("CPU", "CPU_PINNED", "DISK"))],
)
def test_media_go_by_the_names_that_routers_know(
    device: str, names: tuple[str, ...], tmp_path: Path, tiny: LoadedModel
) -> None:
    assert tuple(medium_in(tier, device) for tier in ("device", "host", "disk")) == names
    with tiered(tiny, TierSettings(host_bytes=MIB, disk=tmp_path, disk_bytes=MIB), record_events=True) as harness:
        hub = listen(harness)
        for tokens in prompts(6):
            harness.run(tokens, max_tokens=1)
        settle(harness)
        snapshot = harness.engine.call(hub.snapshot).result()
    [_, events, _] = msgspec.msgpack.decode(encode_batch(0.0, snapshot.events, device, "map"))
    assert {event["medium"] for event in events} == set(names)
    told = {event.stored.medium for message in snapshot_messages("i", snapshot, device) for event in message.events}
    assert told == set(names)

"""The client's `watch_events` and `agent-client events` against the real server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_client import (
    AsyncRadixClient,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EventBatch,
    EventPosition,
    RadixClient,
    RetryPolicy,
    Unavailable,
)

from .conftest import RunningServer, ids, running_server

pytestmark = pytest.mark.e2e


class Index:
    """Every block that is cached, by hash, with its salt."""

    def __init__(self) -> None:
        self.blocks: dict[int, str | None] = {}
        self.position: EventPosition | None = None
        self.snapshots = 0

    def apply(self, batch: EventBatch) -> None:
        if batch.starts_over:
            self.blocks.clear()
            self.snapshots += 1
        for event in batch.events:
            if isinstance(event, BlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlocksStored):
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                assert event.parent_hash is None or event.parent_hash in self.blocks
                self.blocks.update(dict.fromkeys(event.block_hashes, event.salt))
            else:
                assert isinstance(event, BlocksRemoved)
                for h in event.block_hashes:
                    del self.blocks[h]
        self.position = batch.position

    def follow(self, batches: Iterator[EventBatch]) -> None:
        for batch in batches:
            self.apply(batch)

    def of(self, salt: str) -> int:
        return sum(1 for owner in self.blocks.values() if owner == salt)


def salt_of(client: RadixClient) -> str:
    return client._namespace.salt


def test_a_watcher_sees_blocks_come_and_go(client: RadixClient) -> None:
    salt, index = salt_of(client), Index()
    client.generate(ids(64, 1), max_tokens=1, ignore_eos=True)
    watched = client.watch_events()
    while index.of(salt) < 4:
        index.apply(next(watched))
    client.generate(ids(64, 1) + ids(32, 2), max_tokens=1, ignore_eos=True)
    while index.of(salt) < 6:
        index.apply(next(watched))
    client.flush()
    while index.of(salt):
        index.apply(next(watched))
    assert index.snapshots == 1


def test_a_watcher_goes_on_where_another_left(client: RadixClient) -> None:
    salt, index = salt_of(client), Index()
    for batch in client.watch_events():
        index.apply(batch)
        if index.position is not None:
            break
    client.generate(ids(64, 3), max_tokens=1, ignore_eos=True)
    for batch in client.watch_events(index.position):
        index.apply(batch)
        if index.of(salt) == 4:
            break
    assert index.snapshots == 1


async def test_the_asyncio_client_watches_too(server: RunningServer) -> None:
    salt, index = os.urandom(8).hex(), Index()
    async with AsyncRadixClient(server.target, salt=salt) as client:
        await client.generate(ids(64, 4), max_tokens=1, ignore_eos=True)

        async def watch() -> None:
            async for batch in client.watch_events():
                index.apply(batch)
                if index.of(salt) == 4:
                    return

        await asyncio.wait_for(watch(), 60)


def test_a_watcher_is_told_when_the_runtime_ends(tmp_path: Path, tiny_model: Path) -> None:
    index = Index()
    with running_server(tmp_path, tiny_model) as server:
        retry = RetryPolicy(max_attempts=2, first_delay_s=0.01)
        with RadixClient(server.target, retry=retry) as client:
            client.generate(ids(64, 5), max_tokens=1, ignore_eos=True)
            watched = client.watch_events()
            while len(index.blocks) < 4:
                index.apply(next(watched))
            assert server.stop() == 0
            with pytest.raises(Unavailable):
                index.follow(watched)
    assert index.blocks == {}


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_what_is_cached(client: RadixClient, server: RunningServer, as_json: bool) -> None:
    client.generate(ids(64, 6), max_tokens=1, ignore_eos=True)
    command = [sys.executable, "-m", "agent_client", "events", "--target", server.target, "--limit", "1"]
    done = subprocess.run(
        command + (["--json"] if as_json else []), capture_output=True, text=True, timeout=60, check=True
    )
    if not as_json:
        assert "stored  4 blocks" in done.stdout
        assert f"salt '{salt_of(client)}'" in done.stdout
        return
    batch = json.loads(done.stdout)
    assert batch["starts_over"]
    assert batch["incarnation"]
    (mine,) = [event for event in batch["events"] if event["salt"] == salt_of(client)]
    assert mine["token_ids"] == ids(64, 6)
    assert len(mine["block_hashes"]) == 4

"""`agent-client events`: what comes into the cache and what goes, as it happens."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from ..access import Access
from ..client import RadixClient
from ..watching import BlocksCleared, BlocksRemoved, BlocksStored, EventBatch
from ..words import count, namespace_name
from .failures import reported


@reported
def run(target: str, as_json: bool, limit: int | None, access: Access | None = None) -> int:
    console = Console(highlight=False)
    seen = 0
    with RadixClient(target, access=access) as client:
        for batch in client.watch_events():
            if not batch.events and not batch.starts_over:
                continue
            if as_json:
                print(json.dumps(as_dict(batch)), flush=True)
            else:
                for line in lines(batch):
                    console.print(line, soft_wrap=True)
            seen += 1
            if seen == limit:
                break
    return 0


def as_dict(batch: EventBatch) -> dict[str, Any]:
    """A batch as JSON takes it. Hashes are text: they exceed what JSON readers keep exact."""
    position = batch.position
    return {
        "incarnation": position.incarnation if position else None,
        "sequence": position.sequence if position else None,
        "timestamp": batch.timestamp,
        "snapshot": batch.snapshot,
        "starts_over": batch.starts_over,
        "events": [_event_dict(event) for event in batch.events],
    }


def _event_dict(event: BlocksStored | BlocksRemoved | BlocksCleared) -> dict[str, Any]:
    if isinstance(event, BlocksCleared):
        return {"type": "cleared"}
    common = {
        "salt": event.salt,
        "adapter": event.adapter,
        "block_hashes": [_hex(h) for h in event.block_hashes],
        "medium": event.medium,
    }
    if isinstance(event, BlocksRemoved):
        return {"type": "removed", **common}
    return {
        "type": "stored",
        **common,
        "parent_hash": None if event.parent_hash is None else _hex(event.parent_hash),
        "token_ids": event.token_ids.tolist(),
        "block_size": event.block_size,
    }


def lines(batch: EventBatch) -> list[Text]:
    """A line for each event, behind the batch's number and time."""
    sequence = "" if batch.position is None else str(batch.position.sequence)
    clock = datetime.fromtimestamp(batch.timestamp).strftime("%H:%M:%S")
    head = Text(f"{clock} {sequence:>6}  ", style="dim")
    told = [head + Text("cached now:" if batch.events else "nothing is cached", style="bold")] * batch.starts_over
    return told + [head + _line(event) for event in batch.events]


def _line(event: BlocksStored | BlocksRemoved | BlocksCleared) -> Text:
    if isinstance(event, BlocksCleared):
        return Text("cleared", style="yellow")
    blocks = f"{count(len(event.block_hashes))} block{'' if len(event.block_hashes) == 1 else 's'}"
    where = Text(f"  {namespace_name(event.salt, event.adapter)}", style="dim")
    if isinstance(event, BlocksRemoved):
        return Text(f"removed {blocks}", style="red") + Text(f"  {_run(event.block_hashes)}") + where
    after = "at the beginning" if event.parent_hash is None else f"after {_short(event.parent_hash)}"
    return Text(f"stored  {blocks}", style="green") + Text(f"  {_run(event.block_hashes)}  {after}") + where


def _run(hashes: tuple[int, ...]) -> str:
    return _short(hashes[0]) if len(hashes) == 1 else f"{_short(hashes[0])}…{_short(hashes[-1])}"


def _short(block_hash: int) -> str:
    return _hex(block_hash)[:8]


def _hex(block_hash: int) -> str:
    return f"{block_hash:016x}"

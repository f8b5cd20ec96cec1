"""`agent-client leases`: what is kept on request, and by whom."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from ..client import RadixClient
from ..keeping import Leases, Quota
from ..retry import RetryPolicy
from ..words import count, duration, share
from .failures import reported


@reported
def run(target: str, as_json: bool, release: list[int]) -> int:
    with RadixClient(target, retry=RetryPolicy(max_attempts=1)) as client:
        for lease_id in release:
            client.release_lease(lease_id)
        leases, quotas = client.leases(), client.quotas()
    if as_json:
        quoted = [asdict(quota) for quota in quotas]
        print(json.dumps({**asdict(leases), "quotas": quoted}, ensure_ascii=False, indent=2))
        return 0
    console = Console(highlight=False)
    console.print(f"{count(leases.leased_tokens)} of {count(leases.leasable_tokens)} leasable tokens are leased")
    if leases.leases:
        console.print(_table(leases))
    for quota in quotas:
        console.print(f"quota of {_namespace(quota)}: {share(quota.share)}, {count(quota.blocks)} blocks")
    return 0


def _table(leases: Leases) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("id", "tokens", "priority", "ends in"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("salt")
    table.add_column("label")
    for lease in leases.leases:
        row = (str(lease.id), count(lease.tokens), count(lease.priority), duration(lease.ttl_s))
        table.add_row(*row, lease.salt or "–", lease.label)
    return table


def _namespace(quota: Quota) -> str:
    parts = [f"{name} {value!r}" for name, value in (("salt", quota.salt), ("adapter", quota.adapter)) if value]
    return ", ".join(parts) or "no salt"

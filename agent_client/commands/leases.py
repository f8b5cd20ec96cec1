"""`agent-client leases`: what is kept on request, and by whom."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..access import Access
from ..client import RadixClient
from ..keeping import Leases
from ..retry import RetryPolicy
from ..words import count, duration, namespace_name, share
from .failures import reported


@reported
def run(target: str, as_json: bool, release: list[int], access: Access | None = None) -> int:
    with RadixClient(target, access=access, retry=RetryPolicy(max_attempts=1)) as client:
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
        console.print(table(leases))
    for quota in quotas:
        of = namespace_name(quota.salt, quota.adapter)
        console.print(Text(f"quota of {of}: {share(quota.share)}, {count(quota.blocks)} blocks"))
    return 0


def table(leases: Leases) -> Table:
    """A line for each lease."""
    lines = Table(box=box.SIMPLE_HEAD)
    for heading in ("id", "tokens", "priority", "ends in"):
        lines.add_column(heading, justify="right", no_wrap=True)
    lines.add_column("namespace")
    lines.add_column("label")
    for lease in leases.leases:
        row = (str(lease.id), count(lease.tokens), count(lease.priority), duration(lease.ttl_s))
        # As plain text: in a name of somebody else's, [brackets] are no markup.
        lines.add_row(*row, Text(namespace_name(lease.salt, lease.adapter)), Text(lease.label))
    return lines

"""The table of `radix simulate --tiers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radix.cli_values import print_trace
from radix.sizes import format_bytes, format_tokens

if TYPE_CHECKING:
    from rich.console import Console

    from radix.tiered.run import TieredRun


def print_tiers(console: Console, runs: list[TieredRun]) -> None:
    """Print the runs of one trace."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if not runs:
        return
    first = runs[0]
    print_trace(console, first)
    sizes = ", ".join(
        f"{name} {format_bytes(first.capacity_bytes[name])} = {format_tokens(tokens)} tokens"
        for name, tokens in first.capacity_tokens.items()
    )
    console.print(f"{first.model} at {first.dtype}, {first.bytes_per_token:,} bytes a token: {sizes}", highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=0)
    head = ["live", "policy", *first.hit_rates, "all", "lru", "belady", "optimum", "ideal", "TTFT", "lru TTFT"]
    for name in head:
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        rates = [*run.hit_rates.values(), run.hit_rate, run.lru_hit_rate, run.belady_hit_rate]
        rates += [run.optimum_hit_rate, run.ideal_hit_rate]
        times = [f"{run.ttft_s:.2f} s", f"{run.lru_ttft_s:.2f} s"]
        live = "" if run.live is None else str(run.live)
        table.add_row(live, run.policy, *(f"{rate:.2%}" for rate in rates), *times)
    console.print(table)
    console.print(
        "Shares of the input tokens found in each tier. lru, belady: the device alone. optimum: the best order of "
        "eviction on all tiers' bytes.\nTTFT: prefill and copies of the mean call at the given rates; no waiting.",
        style="dim",
        highlight=False,
    )

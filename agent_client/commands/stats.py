"""`agent-client stats`: the model, the pool and the counters, once."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from ..access import Access
from ..client import RadixClient
from ..results import CacheStats, ModelInfo, TierStats
from ..retry import RetryPolicy
from ..words import bytes_, count, duration, share
from .failures import reported


@reported
def run(target: str, as_json: bool, access: Access | None = None) -> int:
    with RadixClient(target, access=access, retry=RetryPolicy(max_attempts=1)) as client:
        model, stats = client.model_info(), client.stats()
    if as_json:
        print(json.dumps({"model": asdict(model), "stats": asdict(stats)}, indent=2))
        return 0
    table = Table.grid(padding=(0, 2))
    for label, value in rows(model, stats):
        table.add_row(label, value)
    Console(highlight=False).print(table)
    return 0


def rows(model: ModelInfo, stats: CacheStats) -> list[tuple[str, str]]:
    """Label and value of everything worth a line."""
    pool_bytes = stats.total_blocks * stats.block_size * model.kv_bytes_per_token
    leased = f"{count(stats.leased_tokens)} of {count(stats.leasable_tokens)}"
    now = f"{stats.running_requests} running, {stats.waiting_requests} waiting"
    return [
        ("model", f"{model.model} ({model.architecture}, context {count(model.context_length)})"),
        ("runs on", f"{model.device}, {model.attention_backend} attention, {model.forward} forward"),
        *([("weights", model.weights)] if model.weights else []),
        *(("chat template", drift.detail) for drift in model.template_drifts),
        ("KV", f"{model.kv_dtype}, {bytes_(model.kv_bytes_per_token)} a token"),
        *([("KV in tiers", model.host_kv_dtype)] if model.host_kv_dtype else []),
        ("up", duration(stats.uptime_s)),
        (
            "requests",
            f"{count(stats.requests_total)}, {now}",
        ),
        ("sessions", count(stats.sessions)),
        ("cancelled, failed", f"{count(stats.cancelled_total)}, {count(stats.failed_total)}"),
        ("prompt tokens", count(stats.prompt_tokens_total)),
        ("  from the cache", f"{count(stats.hit_tokens_total)} ({share(hit_rate(stats))})"),
        ("  computed", count(stats.computed_tokens_total)),
        ("output tokens", count(stats.output_tokens_total)),
        (
            "pool",
            f"{count(stats.total_blocks)} blocks of {stats.block_size} tokens, {bytes_(pool_bytes)}",
        ),
        ("  free", count(stats.free_blocks)),
        ("  cached", f"{count(stats.cached_blocks)} (can be evicted)"),
        ("  in use", count(stats.active_blocks)),
        ("  unused slots", f"{count(stats.unused_slots)} ({share(fragmentation(stats))} of what is held)"),
        ("tree", f"{count(stats.cached_tokens)} tokens in {count(stats.nodes)} nodes, {stats.max_depth} deep"),
        ("saved by sharing", f"{bytes_(saved_by_sharing(model, stats))} between running sequences"),
        ("saved by precision", f"{bytes_(saved_by_precision(model, stats))} of what is held"),
        ("namespaces", count(stats.namespaces)),
        ("evicted tokens", f"{count(stats.evicted_tokens_total)} (policy {stats.eviction or 'unknown'})"),
        ("leases", f"{count(stats.leases)} on {leased} leasable tokens, {count(stats.lease_refusals_total)} refused"),
        ("tool holds", f"{count(stats.tool_holds_total)}, {count(stats.tool_holds_refused_total)} refused"),
        ("copied tokens", count(stats.copied_tokens_total)),
        ("preemptions", count(stats.preemptions_total)),
        *((f"{tier.name} tier", tier_line(tier)) for tier in stats.tiers),
    ]


def tier_line(tier: TierStats) -> str:
    """What a tier behind the pool holds and gave back."""
    used = f"{bytes_(tier.used_blocks * tier.block_bytes)} of {bytes_(tier.total_blocks * tier.block_bytes)}"
    told = f"{used}, {count(tier.fetched_tokens_total)} tokens fetched, {count(tier.failed_blocks_total)} blocks failed"
    return f"{told}; given up until the next start: it did not answer" if tier.given_up else told


def saved_by_sharing(model: ModelInfo, stats: CacheStats) -> int:
    """Bytes that running sequences would take beside what they do if each had its prefix to itself."""
    return stats.shared_blocks * stats.block_size * model.kv_bytes_per_token


def saved_by_precision(model: ModelInfo, stats: CacheStats) -> int:
    """Bytes that the held blocks would take beside what they do at the dtype of the weights."""
    held = (stats.total_blocks - stats.free_blocks) * stats.block_size
    return held * max(0, model.plain_kv_bytes_per_token - model.kv_bytes_per_token)


def fragmentation(stats: CacheStats) -> float | None:
    """Share of the held blocks' slots that hold no token of their own."""
    held = (stats.total_blocks - stats.free_blocks) * stats.block_size
    return stats.unused_slots / held if held else None


def hit_rate(stats: CacheStats) -> float | None:
    """Share of all prompt tokens that were found in the cache."""
    return stats.hit_tokens_total / stats.prompt_tokens_total if stats.prompt_tokens_total else None

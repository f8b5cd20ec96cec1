"""Prometheus metrics: the engine's and the store's own books, read when somebody scrapes."""

from __future__ import annotations

import errno
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from radix import StoreStats
from runtime.engine import Engine
from runtime.models.loaded_model import ModelInfo
from runtime.monitoring.last_stats import LastKnownStats
from runtime.monitoring.request_histograms import RequestHistograms
from runtime.monitoring.retention_metrics import holds, misses
from runtime.monitoring.step_histograms import StepHistograms
from runtime.publishing.publisher import PublisherStatus
from runtime.retention.keeping import KeepingBooks
from runtime.settings import BadConfig

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

# A scrape must answer while the engine is in a long step: the pool's figures are then those of the scrape before.
_STORE_WAIT_S = 0.25


class RuntimeMetrics:
    """The metrics of one runtime, in a registry of its own.

    Args:
        sessions: how many are open; called from the scraping thread.
        keeping: the books of leases and tool holds; None where nothing holds for tools.
        publisher: how publishing to Redis goes; None where nothing is published.
    """

    def __init__(
        self,
        engine: Engine,
        info: ModelInfo,
        *,
        sessions: Callable[[], int],
        keeping: Callable[[], KeepingBooks] | None = None,
        publisher: Callable[[], PublisherStatus] | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_RuntimeCollector(engine, info, sessions, keeping, publisher))
        ProcessCollector(registry=self.registry)

    def serve(
        self, host: str, port: int, beside: Callable[[WSGIApplication], WSGIApplication] | None = None
    ) -> MetricsServer:
        """Answer `http://host:port/metrics`; port 0 takes a free one. Raises BadConfig where it cannot listen.

        `beside` may wrap the application to answer other paths.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        app = server.get_app()
        if beside is not None and app is not None:
            server.set_app(beside(app))
        return MetricsServer(host, server, thread)


def check_port(host: str, port: int) -> None:
    """Raise BadConfig where the metrics could not be served, without serving anything yet."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> BadConfig:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return BadConfig("metrics_host", f"{host}: {error.strerror or error}")
    return BadConfig("metrics_port", f"{port}: {error.strerror or error}")


class MetricsServer:
    """The HTTP side of the metrics, in a thread of its own.

    Attributes:
        port: the real one where port 0 was asked for.
        url: what a scraper on this machine reads.
    """

    def __init__(self, host: str, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port = int(server.server_port)
        reachable = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{self.port}/metrics"

    def close(self) -> None:
        """Stop answering. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _RuntimeCollector(Collector):
    def __init__(
        self,
        engine: Engine,
        info: ModelInfo,
        sessions: Callable[[], int],
        keeping: Callable[[], KeepingBooks] | None,
        publisher: Callable[[], PublisherStatus] | None,
    ) -> None:
        self._engine = engine
        self._info = info
        self._sessions = sessions
        self._keeping = keeping
        self._publisher = publisher
        self._requests = RequestHistograms()
        self._steps = StepHistograms()
        engine.on_finished.append(self._requests.record)
        engine.on_step.append(self._steps.record)
        self._store = LastKnownStats(engine)

    def collect(self) -> Iterator[Metric]:
        yield from self._what_runs()
        yield from self._engine_books()
        stats, age_s = self._store.read(_STORE_WAIT_S)
        if stats is not None:
            yield from _pool(stats)
            yield from _bytes(stats, self._info)
            yield _gauge("pool_stats_age_seconds", "How old the figures of pool and tree are.", age_s)
        yield from misses(self._engine.counters)
        if self._keeping is not None:
            yield from holds(self._keeping())
        yield from self._requests.families()
        yield self._steps.family()
        if self._publisher is not None:
            yield from _redis(self._publisher())

    def describe(self) -> Iterator[Metric]:
        # Registration must not wait for an engine that does not run yet.
        return iter(())

    def _what_runs(self) -> Iterator[Metric]:
        info = self._info
        yield InfoMetricFamily(
            "radixloop_build",
            "Versions.",
            {"version": installed_version("radixloop"), "python": platform.python_version()},
        )
        yield InfoMetricFamily(
            "radixloop_model",
            "The model that is served.",
            {
                "model": info.name,
                "architecture": info.architecture,
                "dtype": info.dtype,
                "kv_dtype": info.kv_dtype,
                "device": info.device,
                "attention_backend": info.attention_backend,
                "forward": info.forward,
                "fingerprint": info.fingerprint,
                "eviction": self._engine.config.eviction,
            },
        )
        yield _gauge("kv_bytes_per_token", "Bytes of KV that one token takes.", info.kv_bytes_per_token)
        yield _gauge("engine_up", "1 while the engine's thread runs.", int(self._engine.alive))

    def _engine_books(self) -> Iterator[Metric]:
        books = self._engine.counters
        # Read before the queries: a request that is admitted meanwhile cannot make hits exceed them.
        hits, queries = books.hit_tokens, books.lookup_tokens
        yield _counter(
            "prefix_cache_queries_tokens",
            "Prompt tokens that were looked up in the cache. Means what vllm:prefix_cache_queries_total does.",
            queries,
        )
        yield _counter(
            "prefix_cache_hits_tokens",
            "Of these, tokens that were found. Means what vllm:prefix_cache_hits_total does.",
            hits,
        )
        by_tier = CounterMetricFamily(
            "radixloop_prefix_cache_tier_hits_tokens",
            "The tokens that were found, by where they were: the pool (device), host memory, disk.",
            labels=["tier"],
        )
        slower = books.host_hit_tokens, books.disk_hit_tokens
        for tier, tokens in zip(("device", "host", "disk"), (hits - sum(slower), *slower), strict=True):
            by_tier.add_metric([tier], max(0, tokens))
        yield by_tier
        yield _counter(
            "prompt_tokens",
            "Prompt tokens of all requests that were admitted. Means what vllm:prompt_tokens_total does.",
            books.prompt_tokens,
        )
        yield _counter(
            "computed_prompt_tokens",
            "Prompt tokens that went through a forward pass: those not cached, and again those lost to a preemption.",
            books.computed_tokens,
        )
        yield _counter(
            "generation_tokens",
            "Tokens generated. Means what vllm:generation_tokens_total does.",
            books.output_tokens,
        )
        drafted = CounterMetricFamily(
            "radixloop_draft_tokens",
            "Draft tokens that were verified, by what became of them. Their sum means what "
            "vllm:spec_decode_num_draft_tokens_total does, "
            'outcome="accepted" what vllm:spec_decode_num_accepted_tokens_total does.',
            labels=["outcome"],
        )
        # Read before the sum, so that what is verified meanwhile cannot make the difference negative.
        accepted = books.accepted_draft_tokens
        drafted.add_metric(["accepted"], accepted)
        drafted.add_metric(["rejected"], books.draft_tokens - accepted)
        yield drafted
        requests = CounterMetricFamily(
            "radixloop_requests",
            "Requests that ended, by outcome; refused ones were never queued. "
            'outcome="finished" means what the sum of vllm:request_success_total does.',
            labels=["outcome"],
        )
        for outcome in ("finished", "cancelled", "failed", "refused"):
            requests.add_metric([outcome], getattr(books, outcome))
        yield requests
        yield _counter(
            "preemptions",
            "Times that a request was put back into the queue for want of blocks. "
            "Means what vllm:num_preemptions_total does.",
            books.preemptions,
        )
        yield _counter("engine_steps", "Forward passes.", books.steps)
        yield _gauge(
            "requests_running",
            "Choices that are being computed. Means what vllm:num_requests_running does.",
            books.running,
        )
        yield _gauge(
            "requests_waiting",
            "Choices in the queue. Means what vllm:num_requests_waiting does.",
            books.waiting,
        )
        yield _gauge("sessions", "Open sessions.", self._sessions())


def _pool(stats: StoreStats) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "radixloop_pool_blocks",
        "KV blocks by state: free, active (held by running requests), cached (held by the tree alone, can be evicted).",
        labels=["state"],
    )
    for state in ("free", "active", "cached"):
        blocks.add_metric([state], getattr(stats, f"{state}_blocks"))
    yield blocks
    yield _gauge("pool_block_size_tokens", "Token slots a block.", stats.block_size)
    yield _gauge(
        "pool_usage_ratio",
        "Share of the blocks that running requests hold. Means what vllm:kv_cache_usage_perc does.",
        stats.active_blocks / stats.total_blocks,
    )
    yield _gauge(
        "pool_unused_slots",
        "Fragmentation: token slots of active and cached blocks that hold no token of their own.",
        stats.unused_slots,
    )
    yield _gauge("cached_tokens", "Tokens in the tree.", stats.cached_tokens)
    yield _gauge("tree_nodes", "Nodes of the tree.", stats.nodes)
    yield _gauge("tree_depth_nodes", "Nodes on the tree's longest path.", stats.max_depth)
    yield _gauge("tree_namespaces", "Namespaces with something cached.", stats.namespaces)
    yield _gauge(
        "open_sequences", "Sequences that hold blocks, running ones and those between two steps.", stats.open_sequences
    )
    yield _counter("evicted_tokens", "Tokens evicted from the tree.", stats.evicted_tokens)
    yield _gauge("leases", "Leases that have not ended.", stats.leases)
    yield _gauge("leased_tokens", "Cached tokens that leases cover, each counted once.", stats.leased_tokens)
    yield _counter("evicted_blocks", "Blocks that came free by eviction.", stats.evicted_blocks)
    yield _counter(
        "copied_tokens", "Tokens copied to a fresh block because a match ended inside one.", stats.copied_tokens
    )


def _bytes(stats: StoreStats, info: ModelInfo) -> Iterator[Metric]:
    held = (stats.total_blocks - stats.free_blocks) * stats.block_size
    kept = GaugeMetricFamily(
        "radixloop_kv_held_bytes",
        "Bytes of KV in held blocks, by the precision they are kept at.",
        labels=["dtype"],
    )
    kept.add_metric([info.kv_dtype], held * info.kv_bytes_per_token)
    yield kept
    yield _gauge(
        "kv_saved_by_sharing_bytes",
        "Bytes that open sequences would take beside what they do if each had its prefix to itself.",
        stats.shared_blocks * stats.block_size * info.kv_bytes_per_token,
    )
    yield _gauge(
        "kv_saved_by_precision_bytes",
        "Bytes that held blocks would take beside what they do at the dtype of the weights.",
        held * max(0, info.plain_kv_bytes_per_token - info.kv_bytes_per_token),
    )


def _redis(status: PublisherStatus) -> Iterator[Metric]:
    yield _gauge("redis_up", "1 while the last attempt to publish to Redis succeeded.", int(status.up))
    yield _gauge("redis_lag_seconds", "How long Redis has been behind the engine.", status.lag_s)
    yield _counter("redis_outages", "Times that publishing to Redis began to fail.", status.outages)
    yield _counter("redis_rewrites", "Times that everything was written to Redis anew.", status.rewrites)
    yield _counter(
        "redis_dropped_events",
        "Tree events that a single snapshot event stands for in the event stream.",
        status.dropped_events,
    )


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"radixloop_{name}", documentation, value)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"radixloop_{name}", documentation, value)

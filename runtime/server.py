"""One runtime from start to exit: model, engine, gRPC, metrics, Redis, signals."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from radixloop.addresses import is_loopback

from radix.metadata_client import BadRedisUrl, connect
from runtime.access.addresses import is_loopback_endpoint
from runtime.access.key_guard import KeyFile
from runtime.access.server_tls import ServerTls
from runtime.config import ServeConfig
from runtime.drafting.drafts import DraftSettings
from runtime.engine import Engine
from runtime.engine_config import EngineConfig
from runtime.errors import RuntimeServiceError
from runtime.grammar.desk import GrammarDesk
from runtime.histories.metrics import HistoryMetrics
from runtime.kv.pool_size import GIB, check_host_cache, pool_blocks
from runtime.logs import set_up_logging
from runtime.models.loaded_model import LoadedModel, ModelInfo
from runtime.models.loader import load_model
from runtime.monitoring.event_metrics import EventMetrics
from runtime.monitoring.metrics import MetricsServer, RuntimeMetrics, check_port
from runtime.monitoring.server_info import ServerInfo
from runtime.monitoring.verify_metrics import VerifyMetrics
from runtime.prompting.prompts import PromptEncoder
from runtime.publishing.description import describe
from runtime.publishing.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from runtime.publishing.kv_events import KvEventHub, medium_of
from runtime.publishing.publisher import RedisPublisher
from runtime.ready_file import Ready, write_ready_file
from runtime.retention.keeping import Keeping, set_quotas
from runtime.scheduling.prefill_pace import PrefillPace
from runtime.services.grpc_server import GrpcServer
from runtime.services.service_context import ServiceContext
from runtime.services.wakeups import WakeUps
from runtime.settings import BadConfig
from runtime.stop_signals import StopSignals
from runtime.tiers.metrics import TierMetrics
from runtime.tiers.narrow import behind
from runtime.vllm_engine import availability

if TYPE_CHECKING:
    from runtime.publishing.zmq_publisher import ZmqPublisher

log = logging.getLogger(__name__)

# For slow readers to take what was written before the engine stopped.
FLUSH_S = 2.0
CHECK_S = 1.0


def run_server(config: ServeConfig) -> int:
    """Serve until a signal ends it; the exit status of the process."""
    set_up_logging(config.log_level, as_json=config.log_json)
    try:
        return asyncio.run(_serve(config))
    except BadConfig as error:
        log.error("--%s: %s", (error.field or "config").replace("_", "-"), error)
    except (RuntimeServiceError, EmbeddedRedisError, BadRedisUrl) as error:
        log.error("%s", error)
    return 2


async def _serve(config: ServeConfig) -> int:
    embedded = EmbeddedRedis() if config.redis == "embedded" else None
    stop = StopSignals(asyncio.get_running_loop(), before_exit=embedded.stop if embedded is not None else None)
    grpc_server = listen(config)
    try:
        # What can be refused is refused before the model is loaded.
        if config.redis not in ("off", "embedded"):
            connect(config.redis, timeout_s=1.0).close()
        if config.metrics_port is not None:
            check_port(config.metrics_host, config.metrics_port)
        availability.served(config.vllm_engine)
        loaded = await asyncio.to_thread(
            load_model,
            config.model,
            dtype=config.dtype,
            device=config.device,
            attention=config.attention,
            forward=config.forward,
            deterministic=config.deterministic,
            block_size=config.block_size,
            kv=config.kv,
        )
        redis_url = None if config.redis == "off" else config.redis
        if embedded is not None:
            redis_url = await asyncio.to_thread(embedded.start)
        loaded = behind(limit_context(loaded, config.max_context), config.host_kv_dtype)
        return await Runtime(config, loaded, grpc_server, redis_url).run(stop)
    finally:
        await grpc_server.stop(0)
        if embedded is not None:
            await asyncio.to_thread(embedded.stop)


def listen(config: ServeConfig) -> GrpcServer:
    """The port that a runtime is asked to open, with its certificate and its keys. Raises BadConfig."""
    tls = None
    if config.tls_cert is not None and config.tls_key is not None:
        tls = ServerTls(config.tls_cert, config.tls_key, config.tls_client_ca)
    keys = None if config.keys is None else KeyFile(config.keys)
    return GrpcServer(config.host, config.port, tls=tls, keys=keys)


class Runtime:
    """The parts of one runtime, wired.

    Args:
        grpc_server: bound to its port, with no services yet.
        redis_url: where to publish; None publishes nothing.
    """

    def __init__(
        self, config: ServeConfig, loaded: LoadedModel, grpc_server: GrpcServer, redis_url: str | None
    ) -> None:
        num_blocks = pool_blocks(config, loaded.info)
        check_host_cache(config, loaded.info, num_blocks)
        runtime_id = config.runtime_id or f"{socket.gethostname()}-{grpc_server.port}"
        encoder = PromptEncoder(loaded.tokenizer, loaded.info, config.history_memory)
        for drift in encoder.drifts:
            log.warning("%s: the chat template %s", loaded.info.name, drift.detail)
        self._config = config
        self._grpc = grpc_server
        self._redis_url = redis_url
        self._engine = Engine(
            loaded,
            EngineConfig(
                num_blocks=num_blocks,
                block_size=config.block_size,
                max_batch_tokens=config.max_batch_tokens,
                max_running=config.max_running,
                max_queue=config.max_queue,
                order=config.order,
                drafts=DraftSettings.named(config.drafts, config.draft_tokens),
                passes=config.order_passes,
                hold_back_s=config.hold_back_seconds,
                max_itl_s=None if config.max_itl_ms is None else config.max_itl_ms / 1000,
                eviction=config.eviction,
                leasable_share=config.leasable_share,
                explain_across_namespaces=config.explains_across_namespaces,
                record_events=config.kv_events != "off",
                cuda_graphs=config.cuda_graphs == "auto",
                verify_hits=config.verify_hits,
                tiers=config.tiers,
            ),
        )
        self._publisher: RedisPublisher | None = None
        if redis_url is not None:
            self._publisher = RedisPublisher(
                redis_url,
                runtime_id,
                self._engine.call,
                describe=lambda: describe(self._shared, grpc_server.target),
                decode=encoder.decode_head,
                head_tokens=config.redis_head_tokens,
            )
        incarnation = self._publisher.incarnation if self._publisher is not None else uuid.uuid4().hex
        self._events = KvEventHub(incarnation) if config.kv_events != "off" else None
        self._zmq: ZmqPublisher | None = None
        if self._events is not None:
            self._engine.after_step.append(self._events.collect)
            if self._engine.tiers is not None:
                self._events.behind = self._engine.tiers.announcer()
            if config.kv_events == "zmq":
                self._zmq = zmq_publisher(config, self._events, self._engine, loaded.info)
        wakeups = WakeUps(asyncio.get_running_loop())
        self._engine.after_step.append(lambda store: wakeups.flush())
        keeping = Keeping(self._engine.call, config)
        keeping.on_family_end(self._engine.program_ended)
        set_quotas(self._engine.call, config, loaded.info.fingerprint)
        pace = PrefillPace()
        self._engine.on_finished.append(pace.record)
        grammars = GrammarDesk(
            loaded.tokenizer,
            loaded.info,
            encoder.tool_format,
            seconds=config.grammar_seconds,
            books=self._engine.grammar_books,
        )
        self._shared = ServiceContext(
            engine=self._engine,
            loaded=loaded,
            encoder=encoder,
            grammars=grammars,
            sessions=keeping.sessions,
            leases=keeping.leases,
            holds=keeping.holds,
            branches=keeping.branches,
            pace=pace,
            config=config,
            num_blocks=num_blocks,
            runtime_id=runtime_id,
            incarnation=incarnation,
            wakeups=wakeups,
            events=self._events,
        )
        self._metrics = RuntimeMetrics(
            self._engine,
            loaded.info,
            sessions=lambda: len(keeping.sessions),
            keeping=keeping.books,
            publisher=self._publisher.status if self._publisher is not None else None,
        )
        if config.history_memory:
            self._metrics.registry.register(HistoryMetrics(encoder.history_books))
        if self._events is not None:
            published = self._zmq.counters if self._zmq is not None else None
            self._metrics.registry.register(EventMetrics(self._events, published))
        self._metrics.registry.register(self._engine.grammar_books)
        if self._engine.tiers is not None:
            self._metrics.registry.register(TierMetrics(self._engine.tiers.books))
        if self._engine.verifier is not None:
            self._metrics.registry.register(VerifyMetrics(self._engine.verifier.books))
        tokens = num_blocks * config.block_size
        gib = tokens * loaded.info.kv_bytes_per_token / GIB
        log.info("KV pool: %d blocks of %d, %d tokens, %.2f GiB", num_blocks, config.block_size, tokens, gib)

    async def run(self, stop: StopSignals) -> int:
        """Serve until a signal asks for the end, then drain; the exit status. Raises BadConfig."""
        shared = self._shared
        # Left in the opposite order: no new work, running requests drain, their streams are written out, the rest.
        async with AsyncExitStack() as ends:
            ends.callback(shared.encoder.close)
            ends.callback(shared.grammars.close)
            metrics = self._serve_metrics()
            if metrics is not None:
                ends.push_async_callback(asyncio.to_thread, metrics.close)
            if self._publisher is not None:
                self._publisher.start()
                ends.push_async_callback(asyncio.to_thread, self._publisher.stop)
            if self._zmq is not None:
                self._zmq.start()
                ends.push_async_callback(asyncio.to_thread, self._zmq.close)
            await self._grpc.start(shared)
            ends.push_async_callback(self._grpc.stop, FLUSH_S)
            if self._events is not None:
                # Before the server stops: it ends the streams of those who watch.
                ends.callback(self._events.close)
            self._engine.start()
            ends.push_async_callback(asyncio.to_thread, self._engine.shutdown, self._config.drain_seconds)
            await self._grpc.set_serving(True)
            ends.push_async_callback(self._grpc.set_serving, False)
            self._announce(metrics)
            stop.may_drain = True
            engine_died = await self._wait(stop)
            if engine_died:
                log.error("the engine's thread ended by itself; requests that it held are lost")
            else:
                log.info("draining for up to %g s; a second signal exits at once", self._config.drain_seconds)
        log.info("stopped")
        return 1 if engine_died else 0

    def _serve_metrics(self) -> MetricsServer | None:
        if self._config.metrics_port is None:
            return None
        beside = None
        if self._zmq is not None and self._zmq.endpoint.startswith("tcp://"):
            beside = self._server_info(self._zmq.endpoint).beside
        return self._metrics.serve(self._config.metrics_host, self._config.metrics_port, beside)

    def _server_info(self, endpoint: str) -> ServerInfo:
        shared, config = self._shared, self._config
        return ServerInfo(
            endpoint=endpoint,
            topic=config.kv_events_topic,
            block_size=config.block_size,
            http_host=config.metrics_host,
            vocab_size=shared.info.vocab_size,
            decode=shared.encoder.decode_head,
        )

    async def _wait(self, stop: StopSignals) -> bool:
        """Wait for a signal; True when the engine's thread ended before one came."""
        asked = asyncio.ensure_future(stop.wait())
        while not asked.done():
            await asyncio.wait([asked], timeout=CHECK_S)
            self._shared.sessions.expire()
            if not asked.done() and not self._engine.alive:
                asked.cancel()
                return True
        return False

    def _announce(self, metrics: MetricsServer | None) -> None:
        ready = Ready(
            target=self._grpc.target,
            port=self._grpc.port,
            metrics_port=metrics.port if metrics is not None else None,
            metrics_url=metrics.url if metrics is not None else None,
            redis_url=self._redis_url,
            kv_events_endpoint=self._zmq.endpoint if self._zmq is not None else None,
            kv_events_replay=self._zmq.replay_endpoint if self._zmq is not None else None,
            runtime_id=self._shared.runtime_id,
            model=self._shared.info.name,
            pid=os.getpid(),
            tls=self._config.tls_cert is not None,
        )
        if not is_loopback(self._config.host):
            for exposed in exposures(self._config):
                log.warning("%s may be reachable from other machines: %s", self._config.host, exposed)
        if self._config.ready_file is not None:
            write_ready_file(self._config.ready_file, ready)
        also = {"metrics": ready.metrics_url, "redis": ready.redis_url, "KV events": ready.kv_events_endpoint}
        log.info(
            "serving %s on %s%s", ready.model, ready.target, "".join(f", {k} {url}" for k, url in also.items() if url)
        )


def zmq_publisher(config: ServeConfig, hub: KvEventHub, engine: Engine, info: ModelInfo) -> ZmqPublisher:
    """The ZeroMQ side of the KV events, bound and not yet started. Raises BadConfig."""
    try:
        from runtime.publishing.zmq_publisher import ZmqPublisher
    except ImportError as error:
        needed = f"zmq needs pyzmq and msgspec ({error}): pip install 'radixloop[events]'"
        raise BadConfig("kv_events", needed) from None
    publisher = ZmqPublisher(
        hub,
        lambda: engine.call(hub.snapshot),
        endpoint=config.kv_events_endpoint,
        replay=None if config.kv_events_replay == "off" else config.kv_events_replay,
        topic=config.kv_events_topic,
        medium=medium_of(info.device),
        layout=config.kv_events_format,
    )
    if not is_loopback_endpoint(publisher.endpoint):
        log.warning("%s may be reachable from other machines, and events carry prompts", publisher.endpoint)
    return publisher


def exposures(config: ServeConfig) -> list[str]:
    """What whoever reaches the runtime's address can do, in words."""
    told = []
    if config.keys is None and config.tls_client_ca is None:
        told.append("nothing authenticates callers (--keys, --tls-client-ca)")
    if config.tls_cert is None:
        told.append("prompts and keys can be read on the way (--tls-cert, --tls-key)")
    return told


def limit_context(loaded: LoadedModel, max_context: int | None) -> LoadedModel:
    """The model with its context length lowered to `max_context`. Raises BadConfig."""
    own = loaded.info.context_length
    if max_context is None and own:
        return loaded
    if max_context is None:
        raise BadConfig("max_context", "the model's config names no context length: give one")
    if own and max_context > own:
        raise BadConfig("max_context", f"{max_context}: the model's context ends at {own}")
    return replace(loaded, info=replace(loaded.info, context_length=max_context))

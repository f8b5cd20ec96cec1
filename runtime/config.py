"""Every setting of `radix-runtime serve`, checked once at start-up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from radix.eviction import DEFAULT_POLICY, POLICIES
from runtime.access.addresses import refuse_in_the_clear
from runtime.errors import InvalidRequest
from runtime.kv.settings import KVSettings
from runtime.scheduling.scheduling_order import DEFAULT_HOLD_BACK_S, DEFAULT_ORDER, DEFAULT_PASSES, ORDERS
from runtime.settings import BadConfig, explain, setting
from runtime.sizes import PoolMemory, Size, parse_disk, parse_quota
from runtime.tiers.settings import TierSettings, check_kept

MODEL, LISTEN, POOL, KEEP, TIERS = "Model", "Listening", "KV pool", "What is kept", "Tiers behind the pool"
WORK, WATCH, EVENTS = "Scheduling", "Watching", "KV events"

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "valkey://", "valkeys://")


class ServeConfig(BaseModel):
    """Settings of one runtime. Field names are the flags with underscores; the help texts are those of the flags."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = setting(
        "smollm2",
        MODEL,
        "Folder, .gguf file or hub id; [bold]smollm2[/] and [bold]gemma3-270m[/] come from packages.",
        metavar="MODEL",
        min_length=1,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"] = setting(
        "auto", MODEL, "auto, float32, bfloat16 or float16.", metavar="DTYPE"
    )
    device: str = setting("auto", MODEL, "auto, cpu, cuda, cuda:N or mps.", metavar="DEVICE")
    attention: str = setting(
        "auto", MODEL, "Attention back end; auto takes the best that the device has.", metavar="NAME"
    )
    forward: Literal["auto", "lean", "model"] = setting(
        "auto",
        MODEL,
        "auto runs Llama-like models without transformers' module calls, lean insists on it, model never does.",
        metavar="NAME",
    )
    cuda_graphs: Literal["auto", "off"] = setting(
        "auto",
        MODEL,
        "On a CUDA GPU, record decode steps once and replay them; takes seconds at start-up and some memory.",
        metavar="auto|off",
    )
    deterministic: bool = setting(
        False,
        MODEL,
        "Equal bits for equal prompts, whatever is cached and whatever else runs. CPU only, slower.",
    )
    max_context: int | None = setting(
        None, MODEL, "Lower the model's context length.", metavar="TOKENS", shown="the model's", ge=2
    )

    host: str = setting(
        "127.0.0.1",
        LISTEN,
        "Address to listen on. Any but a loopback address takes TLS, or --insecure.",
        metavar="HOST",
        min_length=1,
    )
    port: int = setting(50051, LISTEN, "gRPC port; 0 takes a free one.", metavar="PORT", ge=0, le=65535)
    tls_cert: Path | None = setting(
        None, LISTEN, "Speak TLS with this certificate, PEM; read again when it changes.", metavar="FILE"
    )
    tls_key: Path | None = setting(None, LISTEN, "Its key, PEM, without a password.", metavar="FILE")
    tls_client_ca: Path | None = setting(
        None, LISTEN, "Let in only callers with a certificate of these authorities, PEM.", metavar="FILE"
    )
    keys: Path | None = setting(
        None,
        LISTEN,
        "Lines of TENANT KEY or TENANT KEY priority=N, read again when they change: every call brings a key. A tenant "
        "has its own cache and sees nothing of others; * is an operator's key: it names every namespace.",
        metavar="FILE",
    )
    insecure: bool = setting(
        False,
        LISTEN,
        "Listen in the clear, also where other machines may call: prompts and keys can be read on the way.",
    )
    ready_file: Path | None = setting(None, LISTEN, "Written as JSON (ports, pid) when serving begins.", metavar="PATH")
    runtime_id: str | None = setting(
        None,
        LISTEN,
        "Name of this runtime.",
        metavar="NAME",
        shown="HOSTNAME-PORT",
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9._:-]+$",
    )
    vllm_engine: Literal["auto", "on", "off"] = setting(
        "auto",
        LISTEN,
        "Also serve vllm.grpc.engine.VllmEngine, which routers such as SMG speak: auto does where radixloop\\[router] "
        "is installed. Costs nothing until one connects.",
        metavar="auto|on|off",
    )
    drain_seconds: float = setting(
        30.0,
        LISTEN,
        "How long running requests may go on after SIGTERM or Ctrl-C.",
        metavar="SECONDS",
        ge=0,
        le=3600,
        allow_inf_nan=False,
    )

    block_size: int = setting(
        16, POOL, "Token slots in a block. Hits are exact at every size.", metavar="TOKENS", ge=1, le=1024
    )
    num_blocks: int | None = setting(
        None, POOL, "Size of the pool in blocks.", metavar="N", shown="from --kv-memory", ge=2, le=2**31 - 1
    )
    kv_memory: PoolMemory | None = setting(
        None,
        POOL,
        "Size of the pool in bytes: 512MiB, 2GiB …; auto takes what is free, less a margin for the work.",
        metavar="SIZE|auto",
        shown="CPU: 2GiB or a quarter of the memory; GPU: half of what is free",
    )

    kv_dtype: str = setting(
        "auto",
        POOL,
        "Precision of cached keys and values: auto (the weights'), fp32, bf16, fp16, fp8_e4m3, int8 or int4. int8 "
        "takes 0.26 of fp32's bytes and serves code, chat and maths alike; int4 takes 0.16, where the number of cached "
        "tokens decides, and costs most in prose and in long code and chat.",
        metavar="DTYPE",
    )
    k_dtype: str | None = setting(None, POOL, "Precision of keys alone.", metavar="DTYPE", shown="from --kv-dtype")
    v_dtype: str | None = setting(None, POOL, "Precision of values alone.", metavar="DTYPE", shown="from --kv-dtype")
    kv_sensitive_layers: str = setting(
        "auto",
        POOL,
        "Layers whose keys or values are kept at a higher precision: auto (measured once for a model, which takes "
        "seconds), none, or a list: 0,keys:10,values:3.",
        metavar="auto|none|LIST",
    )

    eviction: str = setting(
        DEFAULT_POLICY, KEEP, f"Which prefixes go first: {', '.join(sorted(POLICIES))}.", metavar="NAME"
    )
    leasable_share: float = setting(
        0.5,
        KEEP,
        "Of the pool, how much leases may cover together.",
        metavar="SHARE",
        ge=0,
        le=1,
        allow_inf_nan=False,
    )
    quota: tuple[str, ...] | None = setting(
        None,
        KEEP,
        "Let the prefixes of a salt take at most this share of the pool; may be given several times. "
        "=SHARE is for the namespace without a salt.",
        metavar="SALT=SHARE",
    )
    tool_holds: Literal["on", "off"] = setting(
        "on",
        KEEP,
        "Lease the prefix of a session that waits for a tool, for as long as the tool usually takes.",
        metavar="on|off",
    )
    tool_hold_percentile: float = setting(
        90.0,
        KEEP,
        "Hold until so many percent of a tool's pauses were over.",
        metavar="PERCENT",
        gt=0,
        le=100,
        allow_inf_nan=False,
    )
    history_memory: Size = setting(
        "128MiB",
        KEEP,
        "Remember so much of prompts and replies as text, with their token ids, least recently used first to go: a "
        "history that is sent as text keeps the ids that it was generated with, and hits. 0 remembers nothing.",
        metavar="SIZE",
        ge=0,
        validate_default=True,
    )
    explain_across_namespaces: bool = setting(
        True,
        KEEP,
        "Let a verdict say that another namespace holds the prompt (not which). Always off with --keys, and to be "
        "turned off where tenants see verdicts.",
    )

    host_cache: Size = setting(
        0,
        TIERS,
        "Keep so much of what is evicted in host memory, and fetch it back where that is cheaper than computing it. "
        "Costs that memory, and a copy a block.",
        metavar="SIZE",
        shown="off",
        ge=0,
    )
    disk_cache: str | None = setting(
        None,
        TIERS,
        "Keep so much in a file in this folder, which a crash does not spoil. Costs that room, and a write of all "
        "that is computed; the file holds prompts as token ids.",
        metavar="DIR:SIZE",
        shown="off",
    )
    persist: Path | None = setting(
        None,
        TIERS,
        "When SIGTERM or Ctrl-C ends the runtime, save the pool and the host tier here, for up to 20 s, and have them "
        "at the next start.",
        metavar="DIR",
        shown="off",
    )
    host_kv_dtype: str = setting(
        "auto",
        TIERS,
        "Precision of what these tiers keep; auto is the pool's. int8 holds four times what fp32 does, but any that is "
        "not the pool's breaks the rule that a hit answers as a miss: what comes back is rounded, and so are answers.",
        metavar="DTYPE",
    )
    foreign_caches: Literal["keep", "remove"] = setting(
        "keep",
        TIERS,
        "What becomes of another model's, template's or precision's files in these folders; they are never read.",
        metavar="keep|remove",
    )

    max_batch_tokens: int = setting(
        512, WORK, "Tokens that one step computes; longer prompts run in chunks.", metavar="N", ge=1, le=2**20
    )
    max_running: int = setting(
        32,
        WORK,
        "Sequences that run at a time; the choices of one request may pass it.",
        metavar="N",
        ge=1,
        le=4096,
    )
    max_queue: int = setting(
        256,
        WORK,
        "Requests that may wait; more get RESOURCE_EXHAUSTED and a retry hint.",
        metavar="N",
        ge=1,
        le=1_000_000,
    )
    order: str = setting(
        DEFAULT_ORDER,
        WORK,
        "Whose prompt is computed first: fcfs; lpm (longest cached prefix); priority (of the request); program "
        "(sessions and named conversations that had least computed for them).",
        metavar="NAME",
    )
    order_passes: int = setting(
        DEFAULT_PASSES,
        WORK,
        "Turns that --order may give to others before the request that waits longest has one.",
        metavar="N",
        ge=0,
        le=1_000_000,
    )
    hold_back_seconds: float = setting(
        DEFAULT_HOLD_BACK_S,
        WORK,
        "When live sessions need more than the pool, calls of the latest wait, each place in line for so long at most, "
        "instead of evicting what the others go on from. 0 lets everybody in.",
        metavar="SECONDS",
        ge=0,
        le=86400,
        allow_inf_nan=False,
    )
    max_itl_ms: float | None = setting(
        None,
        WORK,
        "Cut prompts so that a step beside running streams takes no longer: steadier streams, later first tokens.",
        metavar="MS",
        shown="no limit",
        gt=0,
        le=3_600_000,
        allow_inf_nan=False,
    )
    drafts: Literal["off", "prompt", "tree", "auto"] = setting(
        "auto",
        WORK,
        "Where to look for what a reply may say next, to verify several tokens in one step: prompt (the request's own "
        "text), tree (cached replies of its namespace), auto (both) or off. Tokens stay the same; a few more rows are "
        "computed as long as that pays.",
        metavar="WHERE",
    )
    draft_tokens: int = setting(16, WORK, "Tokens of a draft at most.", metavar="N", ge=1, le=64)
    grammar_seconds: float = setting(
        5.0,
        WORK,
        "Most of the processor's time that compiling a schema, regex or grammar may take, in a process of its own.",
        metavar="SECONDS",
        gt=0,
        le=60,
    )
    max_sessions: int = setting(1024, WORK, "Sessions that may be open.", metavar="N", ge=1, le=1_000_000)
    session_idle_seconds: float = setting(
        3600.0, WORK, "Forget sessions idle for longer.", metavar="SECONDS", gt=0, allow_inf_nan=False
    )

    metrics_host: str = setting(
        "127.0.0.1",
        WATCH,
        "Address to serve the metrics on, in the clear and without keys, whatever gRPC asks for.",
        metavar="ADDRESS",
        min_length=1,
    )
    metrics_port: int | None = setting(
        9400, WATCH, "Prometheus port; 0 takes a free one, off serves none.", metavar="PORT|off", ge=0, le=65535
    )
    redis: str = setting(
        "off",
        WATCH,
        "Where to publish the tree for [bold]radix inspect[/]: off, embedded (starts a Valkey) or a redis:// URL.",
        metavar="off|embedded|URL",
    )
    redis_head_tokens: int = setting(
        16,
        WATCH,
        "Tokens of each tree node that are published as text; 0 keeps all prompt text out of Redis.",
        metavar="N",
        ge=0,
        le=256,
    )
    verify_hits: float = setting(
        0.0,
        WATCH,
        "Of the requests that hit, the share to compute again without the cache when nothing else runs, to compare the "
        "logits: see [bold]radix-runtime verify[/]. Who comes meanwhile waits for up to 16 tokens' computation.",
        metavar="SHARE",
        ge=0,
        le=1,
        allow_inf_nan=False,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", WATCH, "debug, info, warning or error.", metavar="LEVEL"
    )
    log_json: bool = setting(False, WATCH, "Log one JSON object a line.")

    kv_events: Literal["off", "grpc", "zmq"] = setting(
        "grpc",
        EVENTS,
        "Tell routers which blocks are cached: off, grpc (Cache.WatchEvents), or zmq (that, and over ZeroMQ).",
        metavar="off|grpc|zmq",
    )
    kv_events_endpoint: str = setting(
        "tcp://127.0.0.1:5557", EVENTS, "Where the ZeroMQ publisher listens.", metavar="ADDRESS"
    )
    kv_events_replay: str = setting(
        "tcp://127.0.0.1:5558", EVENTS, "Where it answers requests for what was missed.", metavar="ADDRESS|off"
    )
    kv_events_topic: str = setting(
        "", EVENTS, "First frame of every message.", metavar="TEXT", shown="empty", max_length=256
    )
    kv_events_format: Literal["map", "array"] = setting(
        "map",
        EVENTS,
        "map is what current vLLM and SGLang send; array what older readers decode.",
        metavar="map|array",
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError("must be auto, cpu, mps, cuda or cuda:N")
        return value

    @model_validator(mode="after")
    def _known_precision(self) -> ServeConfig:
        try:
            self.kv.check()
            check_kept(self.host_kv_dtype, self.kv_dtype, deterministic=self.deterministic)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def kv(self) -> KVSettings:
        """The four settings of the pool's precision, as one."""
        return KVSettings(self.kv_dtype, self.k_dtype, self.v_dtype, self.kv_sensitive_layers)

    @field_validator("disk_cache")
    @classmethod
    def _known_disk(cls, value: str | None) -> str | None:
        if value is not None:
            parse_disk(value)
        return value

    @property
    def tiers(self) -> TierSettings:
        """What lies behind the pool."""
        disk, disk_bytes = (None, 0) if self.disk_cache is None else parse_disk(self.disk_cache)
        foreign, kept = self.foreign_caches, self.host_kv_dtype
        return TierSettings(self.host_cache, disk, disk_bytes, self.persist, foreign=foreign, kv_dtype=kept)

    @field_validator("eviction")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in POLICIES:
            raise ValueError(f"must be {', '.join(sorted(POLICIES))}")
        return value

    @field_validator("order")
    @classmethod
    def _known_order(cls, value: str) -> str:
        if value not in ORDERS:
            raise ValueError(f"must be {', '.join(sorted(ORDERS))}")
        return value

    @field_validator("quota", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("quota")
    @classmethod
    def _known_quotas(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for quota in value or ():
            parse_quota(quota)
        return value

    @field_validator("redis")
    @classmethod
    def _known_redis(cls, value: str) -> str:
        if value not in ("off", "embedded") and not value.startswith(_REDIS_SCHEMES):
            raise ValueError(f"must be off, embedded or a URL that begins with {', '.join(_REDIS_SCHEMES)}")
        return value

    @field_validator("kv_events_endpoint", "kv_events_replay")
    @classmethod
    def _known_socket(cls, value: str, info: ValidationInfo) -> str:
        may_be_off = info.field_name == "kv_events_replay"
        if not value.startswith(("tcp://", "ipc://")) and not (may_be_off and value == "off"):
            raise ValueError(f"must begin with tcp:// or ipc://{', or be off' if may_be_off else ''}")
        return value

    @field_validator("metrics_port", mode="before")
    @classmethod
    def _metrics_off(cls, value: object) -> object:
        return None if isinstance(value, str) and value.lower() == "off" else value

    @model_validator(mode="after")
    def _one_pool_size(self) -> ServeConfig:
        if self.num_blocks is not None and self.kv_memory is not None:
            raise ValueError("num_blocks and kv_memory both size the pool: give one of them")
        return self

    @model_validator(mode="after")
    def _safe_to_listen(self) -> ServeConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are a certificate and its key: give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca asks for certificates of callers: give tls_cert and tls_key too")
        if not self.insecure:
            zmq = ("kv_events_endpoint", "kv_events_replay") if self.kv_events == "zmq" else ()
            refuse_in_the_clear(
                self.host, tls=self.tls_cert is not None, endpoints={name: getattr(self, name) for name in zmq}
            )
        return self

    @property
    def explains_across_namespaces(self) -> bool:
        """Whether a verdict may tell of other namespaces: tenants with keys see verdicts."""
        return self.explain_across_namespaces and self.keys is None


def build_config(values: dict[str, Any]) -> ServeConfig:
    """A checked ServeConfig; raises BadConfig for the first value that is outside its limit."""
    try:
        return ServeConfig(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        raise BadConfig(field, explain(dict(first))) from None

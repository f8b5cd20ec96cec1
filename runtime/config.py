"""Every setting of `radix-runtime serve`, checked once at start-up."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from radix.eviction import DEFAULT_POLICY, POLICIES

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "valkey://", "valkeys://")


def parse_size(value: object) -> int:
    """Bytes of a size such as "512MiB", "2GiB", "1.5 GB" or a plain number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("must be a size such as 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_quota(text: str) -> tuple[str | None, float]:
    """Salt and share of the pool of SALT=SHARE; no salt before the = means the namespace without one.

    Raises ValueError.
    """
    salt, separator, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = 0.0
    if not separator or not 0 < value <= 1:
        raise ValueError(f"{text!r} must be SALT=SHARE with a share above 0 and at most 1")
    return salt or None, value


Size = Annotated[int, BeforeValidator(parse_size)]


class ServeConfig(BaseModel):
    """Settings of one runtime. Field names are the flags with underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default="smollm2", min_length=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"] = "auto"
    device: str = "auto"
    attention: str = "auto"
    max_context: int | None = Field(default=None, ge=2)

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=50051, ge=0, le=65535)
    metrics_port: int | None = Field(default=9400, ge=0, le=65535)
    runtime_id: str | None = Field(default=None, min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+$")
    ready_file: Path | None = None
    drain_seconds: float = Field(default=30.0, ge=0, le=3600, allow_inf_nan=False)

    block_size: int = Field(default=16, ge=1, le=1024)
    num_blocks: int | None = Field(default=None, ge=2, le=2**31 - 1)
    kv_memory: Size | None = Field(default=None, ge=1)
    eviction: str = DEFAULT_POLICY
    leasable_share: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    quota: tuple[str, ...] | None = None
    tool_holds: Literal["on", "off"] = "on"
    tool_hold_percentile: float = Field(default=90.0, gt=0, le=100, allow_inf_nan=False)
    explain_across_namespaces: bool = True

    max_batch_tokens: int = Field(default=512, ge=1, le=2**20)
    max_running: int = Field(default=32, ge=1, le=4096)
    max_queue: int = Field(default=256, ge=1, le=1_000_000)
    max_sessions: int = Field(default=1024, ge=1, le=1_000_000)
    session_idle_seconds: float = Field(default=3600.0, gt=0, allow_inf_nan=False)

    redis: str = "off"
    redis_head_tokens: int = Field(default=16, ge=0, le=256)

    kv_events: Literal["off", "grpc", "zmq"] = "grpc"
    kv_events_endpoint: str = "tcp://127.0.0.1:5557"
    kv_events_replay: str = "tcp://127.0.0.1:5558"
    kv_events_topic: str = Field(default="", max_length=256)
    kv_events_format: Literal["map", "array"] = "map"

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError("must be auto, cpu, mps, cuda or cuda:N")
        return value

    @field_validator("eviction")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in POLICIES:
            raise ValueError(f"must be {', '.join(sorted(POLICIES))}")
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


class BadConfig(ValueError):
    """A setting outside its limit. `field` is None where several fields clash."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message)
        self.field = field


def build_config(values: dict[str, Any]) -> ServeConfig:
    """A checked ServeConfig; raises BadConfig for the first value that is outside its limit."""
    try:
        return ServeConfig(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        raise BadConfig(field, _explain(dict(first))) from None


def _explain(error: dict[str, Any]) -> str:
    context = error.get("ctx", {})
    limits: dict[str, Callable[[], str]] = {
        "greater_than_equal": lambda: f"must be at least {context['ge']}",
        "greater_than": lambda: f"must be above {context['gt']}",
        "less_than_equal": lambda: f"must be at most {context['le']}",
        "literal_error": lambda: f"must be {context['expected']}",
        "string_too_short": lambda: "must not be empty",
        "string_too_long": lambda: f"must have at most {context['max_length']} characters",
        "string_pattern_mismatch": lambda: "may hold letters, digits, '.', '_', ':' and '-' only",
        "int_parsing": lambda: "must be a whole number",
        "float_parsing": lambda: "must be a number",
        "finite_number": lambda: "must be a finite number",
        "value_error": lambda: str(context["error"]),
    }
    words = limits.get(error["type"], lambda: str(error["msg"]))()
    return words if error["type"] == "value_error" and not error["loc"] else f"{error['input']!r}: {words}"

"""The command line of the runtime: `radix-runtime serve`."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer

from radix.eviction import POLICIES
from runtime.config import BadConfig, ServeConfig, build_config

ENV_PREFIX = "RADIX_RUNTIME_"

app = typer.Typer(
    name="radix-runtime",
    help="Runs a Hugging Face decoder behind gRPC and never computes a prompt prefix twice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"radix-runtime {installed_version('radixloop')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def _default(name: str) -> Any:
    """As text, as all settings arrive here: ServeConfig turns them into numbers, in its own words where it cannot."""
    default = ServeConfig.model_fields[name].default
    return default if isinstance(default, bool) else str(default)


def _option(name: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(
        "--" + name.replace("_", "-"),
        envvar=ENV_PREFIX + name.upper(),
        show_envvar=False,
        rich_help_panel=panel,
        help=text,
        **more,
    )


# Settings that take the word off (or on), which YAML 1.1 reads as a truth value.
_WORDS = ("redis", "metrics_port", "kv_events", "kv_events_replay", "tool_holds")


def _read_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the file's settings the defaults of this command, so that flags and environment win over them."""
    if path is None or ctx.resilient_parsing:
        return path
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is not YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise typer.BadParameter(f"{path} must hold one setting a line, as in 'port: 50051'")
    settings: dict[str, Any] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name not in ServeConfig.model_fields:
            known = ", ".join(sorted(ServeConfig.model_fields))
            raise typer.BadParameter(f"{path}: unknown setting {key!r}; known are {known}")
        if name == "quota" and isinstance(value, str | list):
            settings[name] = [value] if isinstance(value, str) else [str(quota) for quota in value]
            continue
        if not isinstance(value, str | int | float | None):
            raise typer.BadParameter(f"{path}: {key} must be a single value, not {type(value).__name__}")
        settings[name] = _word(value) if isinstance(value, bool) and name in _WORDS else value
    ctx.default_map = {**(ctx.default_map or {}), **settings}
    return path


def _word(value: bool) -> str:
    return "on" if value else "off"


def _where(ctx: typer.Context, name: str, config_file: Path | None) -> str:
    source = ctx.get_parameter_source(name)
    kind = source.name if source is not None else ""
    if kind == "ENVIRONMENT":
        return f" (from {ENV_PREFIX}{name.upper()})"
    if kind == "DEFAULT_MAP":
        return f" (from {config_file})"
    return ""


_MODEL, _LISTEN, _POOL, _KEEP = "Model", "Listening", "KV pool", "What is kept"
_WORK, _WATCH, _EVENTS = "Scheduling", "Watching", "KV events"


@app.command()
def serve(
    ctx: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar=ENV_PREFIX + "CONFIG",
            show_envvar=False,
            callback=_read_file,
            is_eager=True,
            metavar="FILE.yaml",
            help="Settings from a YAML file.",
        ),
    ] = None,
    model: Annotated[
        str,
        _option(
            "model",
            _MODEL,
            "Folder, .gguf file or hub id; [bold]smollm2[/] and [bold]gemma3-270m[/] come from packages.",
            metavar="MODEL",
        ),
    ] = _default("model"),
    dtype: Annotated[str, _option("dtype", _MODEL, "auto, float32, bfloat16 or float16.", metavar="DTYPE")] = _default(
        "dtype"
    ),
    device: Annotated[str, _option("device", _MODEL, "auto, cpu, cuda, cuda:N or mps.", metavar="DEVICE")] = _default(
        "device"
    ),
    attention: Annotated[
        str,
        _option("attention", _MODEL, "Attention back end; auto takes the best that the device has.", metavar="NAME"),
    ] = _default("attention"),
    max_context: Annotated[
        str | None,
        _option(
            "max_context", _MODEL, "Lower the model's context length.", metavar="TOKENS", show_default="the model's"
        ),
    ] = None,
    host: Annotated[
        str,
        _option("host", _LISTEN, "Address to listen on. There is no authentication: keep it private.", metavar="HOST"),
    ] = _default("host"),
    port: Annotated[str, _option("port", _LISTEN, "gRPC port; 0 takes a free one.", metavar="PORT")] = _default("port"),
    ready_file: Annotated[
        Path | None,
        _option("ready_file", _LISTEN, "Written as JSON (ports, pid) when serving begins.", metavar="PATH"),
    ] = None,
    runtime_id: Annotated[
        str | None,
        _option("runtime_id", _LISTEN, "Name of this runtime.", metavar="NAME", show_default="HOSTNAME-PORT"),
    ] = None,
    drain_seconds: Annotated[
        str,
        _option(
            "drain_seconds", _LISTEN, "How long running requests may go on after SIGTERM or Ctrl-C.", metavar="SECONDS"
        ),
    ] = _default("drain_seconds"),
    block_size: Annotated[
        str,
        _option("block_size", _POOL, "Token slots in a block. Hits are exact at every size.", metavar="TOKENS"),
    ] = _default("block_size"),
    num_blocks: Annotated[
        str | None,
        _option("num_blocks", _POOL, "Size of the pool in blocks.", metavar="N", show_default="from --kv-memory"),
    ] = None,
    kv_memory: Annotated[
        str | None,
        _option(
            "kv_memory",
            _POOL,
            "Size of the pool in bytes: 512MiB, 2GiB …",
            metavar="SIZE",
            show_default="CPU: 2GiB or a quarter of the memory; GPU: half of what is free",
        ),
    ] = None,
    eviction: Annotated[
        str,
        _option("eviction", _KEEP, f"Which prefixes go first: {', '.join(sorted(POLICIES))}.", metavar="NAME"),
    ] = _default("eviction"),
    leasable_share: Annotated[
        str,
        _option("leasable_share", _KEEP, "Of the pool, how much leases may cover together.", metavar="SHARE"),
    ] = _default("leasable_share"),
    quota: Annotated[
        list[str] | None,
        _option(
            "quota",
            _KEEP,
            "Let the prefixes of a salt take at most this share of the pool; may be given several times. "
            "=SHARE is for the namespace without a salt.",
            metavar="SALT=SHARE",
        ),
    ] = None,
    tool_holds: Annotated[
        str,
        _option(
            "tool_holds",
            _KEEP,
            "Lease the prefix of a session that waits for a tool, for as long as the tool usually takes.",
            metavar="on|off",
        ),
    ] = _default("tool_holds"),
    tool_hold_percentile: Annotated[
        str,
        _option(
            "tool_hold_percentile", _KEEP, "Hold until so many percent of a tool's pauses were over.", metavar="PERCENT"
        ),
    ] = _default("tool_hold_percentile"),
    explain_across_namespaces: Annotated[
        bool,
        typer.Option(
            "--explain-across-namespaces/--no-explain-across-namespaces",
            envvar=ENV_PREFIX + "EXPLAIN_ACROSS_NAMESPACES",
            show_envvar=False,
            rich_help_panel=_KEEP,
            help="Let a verdict say that another namespace holds the prompt (not which). "
            "Turn it off where tenants see verdicts.",
        ),
    ] = _default("explain_across_namespaces"),
    max_batch_tokens: Annotated[
        str,
        _option("max_batch_tokens", _WORK, "Tokens that one step computes; longer prompts run in chunks.", metavar="N"),
    ] = _default("max_batch_tokens"),
    max_running: Annotated[
        str,
        _option(
            "max_running", _WORK, "Sequences that run at a time; the choices of one request may pass it.", metavar="N"
        ),
    ] = _default("max_running"),
    max_queue: Annotated[
        str,
        _option(
            "max_queue", _WORK, "Requests that may wait; more get RESOURCE_EXHAUSTED and a retry hint.", metavar="N"
        ),
    ] = _default("max_queue"),
    max_sessions: Annotated[str, _option("max_sessions", _WORK, "Sessions that may be open.", metavar="N")] = _default(
        "max_sessions"
    ),
    session_idle_seconds: Annotated[
        str, _option("session_idle_seconds", _WORK, "Forget sessions idle for longer.", metavar="SECONDS")
    ] = _default("session_idle_seconds"),
    metrics_port: Annotated[
        str,
        _option("metrics_port", _WATCH, "Prometheus port; 0 takes a free one, off serves none.", metavar="PORT|off"),
    ] = _default("metrics_port"),
    redis: Annotated[
        str,
        _option(
            "redis",
            _WATCH,
            "Where to publish the tree for [bold]radix inspect[/]: off, embedded (starts a Valkey) or a redis:// URL.",
            metavar="off|embedded|URL",
        ),
    ] = _default("redis"),
    redis_head_tokens: Annotated[
        str,
        _option(
            "redis_head_tokens",
            _WATCH,
            "Tokens of each tree node that are published as text; 0 keeps all prompt text out of Redis.",
            metavar="N",
        ),
    ] = _default("redis_head_tokens"),
    kv_events: Annotated[
        str,
        _option(
            "kv_events",
            _EVENTS,
            "Tell routers which blocks are cached: off, grpc (Cache.WatchEvents), or zmq (that, and over ZeroMQ).",
            metavar="off|grpc|zmq",
        ),
    ] = _default("kv_events"),
    kv_events_endpoint: Annotated[
        str, _option("kv_events_endpoint", _EVENTS, "Where the ZeroMQ publisher listens.", metavar="ADDRESS")
    ] = _default("kv_events_endpoint"),
    kv_events_replay: Annotated[
        str,
        _option("kv_events_replay", _EVENTS, "Where it answers requests for what was missed.", metavar="ADDRESS|off"),
    ] = _default("kv_events_replay"),
    kv_events_topic: Annotated[
        str, _option("kv_events_topic", _EVENTS, "First frame of every message.", metavar="TEXT", show_default="empty")
    ] = _default("kv_events_topic"),
    kv_events_format: Annotated[
        str,
        _option(
            "kv_events_format",
            _EVENTS,
            "map is what current vLLM and SGLang send; array what older readers decode.",
            metavar="map|array",
        ),
    ] = _default("kv_events_format"),
    log_level: Annotated[
        str, _option("log_level", _WATCH, "debug, info, warning or error.", metavar="LEVEL")
    ] = _default("log_level"),
    log_json: Annotated[bool, _option("log_json", _WATCH, "Log one JSON object a line.")] = _default("log_json"),
) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C.

    Every setting may also come from the environment (RADIX_RUNTIME_ and its name: RADIX_RUNTIME_KV_MEMORY=2GiB)
    or from a YAML file (kv_memory: 2GiB). A flag wins over the environment, the environment over the file.
    """
    values = {name: ctx.params[name] for name in ServeConfig.model_fields}
    values["quota"] = values["quota"] or None
    try:
        settings = build_config(values)
    except BadConfig as error:
        if error.field is None:
            raise typer.BadParameter(str(error)) from None
        flag = "--" + error.field.replace("_", "-")
        raise typer.BadParameter(f"{error}{_where(ctx, error.field, config)}", param_hint=f"'{flag}'") from None

    from runtime.server import run_server

    raise typer.Exit(run_server(settings))

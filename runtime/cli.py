"""The command line of the runtime: `radix-runtime serve`, and the commands that have files of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from runtime.commands.backends import backends
from runtime.commands.bench import bench
from runtime.commands.quality import quality
from runtime.commands.simulate import simulate
from runtime.commands.verify import verify
from runtime.config import ServeConfig, build_config
from runtime.settings import BadConfig, flag_help

ENV_PREFIX = "RADIX_RUNTIME_"

app = typer.Typer(
    name="radix-runtime",
    help="Runs a Hugging Face decoder behind gRPC and never computes a prompt prefix twice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


# Settings that take the word off (or on), which YAML 1.1 reads as a truth value.
_WORDS = ("redis", "metrics_port", "kv_events", "kv_events_replay", "tool_holds", "cuda_graphs", "drafts")


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


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting as an option. All arrive as text: ServeConfig turns them into numbers, in its own words if it can't."""
    words = flag_help(field)
    flag = "--" + name.replace("_", "-")
    is_switch, is_list = isinstance(field.default, bool), name == "quota"
    option = typer.Option(
        # A switch that is on can only be useful if it can be turned off.
        f"{flag}/--no-{flag[2:]}" if field.default is True else flag,
        envvar=ENV_PREFIX + name.upper(),
        show_envvar=False,
        rich_help_panel=words.panel,
        help=words.text,
        metavar=words.metavar,
        show_default=words.shown or True,
    )
    kind = bool if is_switch else list[str] | None if is_list else str | None
    default = field.default if is_switch or field.default is None else str(field.default)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command one option for each setting in place of its **settings."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = [_flag(name, field) for name, field in ServeConfig.model_fields.items()]
    command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    return command


@app.command()
@_with_flags
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
    **settings: Any,
) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C.

    Every setting may also come from the environment (RADIX_RUNTIME_ and its name: RADIX_RUNTIME_KV_MEMORY=2GiB)
    or from a YAML file (kv_memory: 2GiB). A flag wins over the environment, the environment over the file.
    """
    settings["quota"] = settings["quota"] or None
    try:
        checked = build_config(settings)
    except BadConfig as error:
        if error.field is None:
            raise typer.BadParameter(str(error)) from None
        flag = "--" + error.field.replace("_", "-")
        raise typer.BadParameter(f"{error}{_where(ctx, error.field, config)}", param_hint=f"'{flag}'") from None

    from runtime.server import run_server

    raise typer.Exit(run_server(checked))


app.command()(bench)
app.command()(simulate)
app.command()(verify)
app.command()(quality)
app.command()(backends)

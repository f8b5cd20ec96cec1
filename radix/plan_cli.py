"""`radix plan`: options and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from radix.errors import InvalidArgument
from radix.output import JSON_HELP, check_json_target, write_json
from radix.sizes import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from radix.plan import Plan, Profile

T = TypeVar("T")
_PROFILE_KEYS = ("start", "per-turn", "turns")
_DEFAULT_TURNS = 20
_MOST_TURNS = 100_000


def plan(
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE", show_default=False, help="Memory for the KV cache alone, beside the weights: 80GiB, 24GB."
        ),
    ],
    model: Annotated[
        list[str],
        typer.Option(
            metavar="DIR|FILE",
            show_default=False,
            help="A model's folder, config.json or GGUF file. Repeat it to compare.",
        ),
    ] = [],  # noqa: B006
    config: Annotated[
        list[str],
        typer.Option(metavar="JSON", show_default=False, help="A config as inline JSON or as a file. Repeatable."),
    ] = [],  # noqa: B006
    dtype: Annotated[
        list[str],
        typer.Option(
            "--kv-dtype",
            "--dtype",
            metavar="NAME,...",
            help="Of the KV cache: fp32, bf16, fp16, fp8_e4m3, int8, int4; int8/int4 is keys/values.",
        ),
    ] = ["fp16"],  # noqa: B006
    block_size: Annotated[int, typer.Option(min=1, max=65536, metavar="N", help="Tokens a block.")] = 16,
    session_tokens: Annotated[
        list[str], typer.Option(metavar="N,N,...", help="Lengths of sessions to count: 8192, 32k.")
    ] = ["8192,32768,131072"],  # noqa: B006
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            show_default=False,
            help="start=S,per-turn=T,turns=N: follow an agent that starts at S tokens and gains T a turn, over N turns "
            "(20 unless given).",
        ),
    ] = None,
    sessions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Sessions that run the profile at the same time.")
    ] = 1,
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Say how many bytes of KV cache a token of a model takes, and how much agent work fits a memory.

    Everything follows from the model's config.json or GGUF header; no weights are read. MHA, GQA, MLA and sliding
    windows are understood.

    Examples:

        radix plan --model ./Llama-3-8B --memory 60GiB

        radix plan --model ./Qwen2.5-7B --model ./DeepSeek-V3 --memory 80GiB

        radix plan --model ./Llama-3-8B --memory 60GiB --sessions 16
        --profile start=12k,per-turn=900
    """
    from radix.model_shapes import model_shape
    from radix.plan import Plan, dtype_named

    check_json_target(json)
    if not model and not config:
        raise typer.BadParameter("give at least one --model or --config", param_hint="--model")
    size = _parsed("--memory", parse_bytes, memory)
    lengths = [_parsed("--session-tokens", parse_tokens, part) for part in _parts(session_tokens)]
    dtypes = [_parsed("--kv-dtype", dtype_named, part) for part in _parts(dtype)]
    agent = None if profile is None else _profile(profile)
    shapes = [model_shape(source) for source in [*model, *config]]
    plans = [Plan(shape, name, size, block_size) for shape in shapes for name in dtypes]
    if json is not None:
        write_json(json, {"plans": [one.as_json(lengths, agent, sessions) for one in plans]})
    if json != "-":
        _print(plans, lengths, agent, sessions)


def _print(plans: list[Plan], lengths: list[int], agent: Profile | None, sessions: int) -> None:
    from rich.console import Console

    from radix.plan_tables import notes, plan_tables, profile_heading, profile_summary, profile_tables

    console = Console(highlight=False)
    for table in plan_tables(plans, lengths, console.width):
        console.print(table)
    for note in notes(plans, lengths):
        console.print(f"• {note}")
    if agent is None:
        return
    console.print(f"\n{profile_heading(plans, agent, sessions)}")
    for table in profile_tables(plans, agent, sessions, console.width):
        console.print(table)
    for line in profile_summary(plans, agent, sessions):
        console.print(f"• {line}")


def _parts(values: list[str]) -> list[str]:
    return list(dict.fromkeys(part.strip() for value in values for part in value.split(",")))


def _profile(text: str) -> Profile:
    from radix.plan import Profile

    given: dict[str, int] = {}
    for part in text.split(","):
        key, equals, value = part.strip().replace("_", "-", 1).partition("=")
        if not equals or key not in _PROFILE_KEYS:
            known = ", ".join(f"{name}=N" for name in _PROFILE_KEYS)
            raise typer.BadParameter(f"{part.strip()!r} is none of {known}", param_hint="--profile")
        given[key] = _parsed("--profile", parse_tokens, value)
    for key in ("start", "per-turn"):
        if key not in given:
            raise typer.BadParameter(f"{key}=N is missing", param_hint="--profile")
    turns = given.get("turns", _DEFAULT_TURNS)
    if turns > _MOST_TURNS:
        raise typer.BadParameter(f"turns is {turns}: the limit is {_MOST_TURNS}", param_hint="--profile")
    return Profile(given["start"], given["per-turn"], turns)


def _parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint=option) from None

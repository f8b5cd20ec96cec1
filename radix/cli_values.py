"""What several commands of `radix` read from an option, and say of a trace, alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from radix.errors import InvalidArgument
from radix.sizes import counted

if TYPE_CHECKING:
    from rich.console import Console


class OfTrace(Protocol):
    """The trace that a run went over."""

    @property
    def trace(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def sessions(self) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def block_size(self) -> int: ...


def policies_named(values: list[str]) -> list[str]:
    """The eviction policies that `--policy` asks for, each once. Raises BadParameter for an unknown name."""
    from radix.eviction import POLICIES, policy_named

    names = [part.strip() for value in values for part in value.split(",")]
    if "all" in names:
        return list(POLICIES)
    try:
        for name in names:
            policy_named(name)
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint="--policy") from None
    return list(dict.fromkeys(names))


def print_trace(console: Console, run: OfTrace) -> None:
    """Print what trace a run went over, above its table."""
    console.print(
        f"\n[bold]{Path(run.trace).name}[/bold] ({run.format}): {counted(run.sessions, 'session')}, "
        f"{counted(run.calls, 'call')}, {counted(run.input_tokens, 'input token')}, blocks of {run.block_size}",
        highlight=False,
    )

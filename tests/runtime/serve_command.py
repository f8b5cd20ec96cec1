"""`radix-runtime serve` up to the moment at which it would load a model."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from runtime import cli


def run(*args: str, env: dict[str, str] | None = None) -> Any:
    """What the command does with these flags; take the fixture `served` too, or it really serves."""
    # A wide terminal, so that no message is broken over two lines.
    return CliRunner().invoke(cli.app, ["serve", *args], env={"COLUMNS": "400", "TERM": "dumb", **(env or {})})

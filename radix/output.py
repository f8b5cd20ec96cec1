"""Where a command's results go: tables and progress for a person, JSON for a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

JSON_HELP = "Write the result as JSON to this file; - writes it to stdout, and nothing else."


def check_json_target(target: str | None) -> None:
    """Refuse a file that could not be written before the work is done. Raises typer.BadParameter."""
    if target in {None, "-"}:
        return
    file = Path(str(target))
    if file.is_dir():
        raise typer.BadParameter(f"{target} is a folder", param_hint="--json")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"the folder {file.parent} does not exist", param_hint="--json")


def write_json(target: str, result: Any) -> None:
    """Write `result` to a file, or to stdout for "-"."""
    text = json.dumps(result, indent=2)
    if target == "-":
        typer.echo(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as failed:
        raise typer.BadParameter(f"{target}: {failed.strerror}", param_hint="--json") from None

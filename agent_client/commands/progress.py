"""What a long command shows while it runs, and how Ctrl-C ends it with a report."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..replay import CallRecord, Hooks

T = TypeVar("T")


async def until_interrupted(work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns, which Ctrl-C cancels; None when it ends without a result then."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # A second Ctrl-C is not caught any more.
        loop.remove_signal_handler(signal.SIGINT)
        task.cancel()

    # Where an event loop cannot take signals (Windows), Ctrl-C ends the command without a report.
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def progress_on(console: Console) -> Progress:
    """Bars with a `note` behind the count; none where the console is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def bars() -> Iterator[Hooks]:
    """One bar a run on standard error, with the hit rate and the errors so far; none where that is no terminal."""
    with progress_on(Console(stderr=True)) as progress:
        yield _Bars(progress).hooks()


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._inputs = self._cached = self._errors = 0

    def hooks(self) -> Hooks:
        return Hooks(self._on_run, self._on_call)

    def _on_run(self, name: str, calls: int) -> None:
        self._inputs = self._cached = self._errors = 0
        self._task = self._progress.add_task(name.replace("_", " "), total=calls, note="")

    def _on_call(self, record: CallRecord) -> None:
        if self._task is None:
            return
        self._inputs += record.usage.prompt_tokens
        self._cached += record.usage.cached_tokens
        self._errors += record.error is not None
        note = f"hit {self._cached / self._inputs:.1%}" if self._inputs else ""
        if self._errors:
            note += f" [red]{self._errors} failed[/red]"
        self._progress.update(self._task, advance=1, note=note)

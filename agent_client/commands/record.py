"""`agent-client record`: carries tasks out over a folder and writes the trace."""

from __future__ import annotations

import asyncio
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..access import Access
from ..agent import TASKS, TOOL_DEFINITIONS, Hooks, PlanFailed, RecordedTask, Recorder, Task, Tools, TurnDone, Workspace
from ..agent.recorder import SAMPLING
from ..aio import AsyncRadixClient
from ..traces import TraceWriter
from ..words import count
from .failures import FAILED, USAGE, reported, say
from .progress import progress_on

NOTE = (
    "Recorded by `agent-client record`: real tools over a repository, their results and latencies as they were. "
    "A small model does not choose tools reliably, so each tool call comes from its task's plan in code, which decides "
    "from the results before it; the words of the replies are the model's own, written live, and often wrong."
)


@reported
def run(
    target: str, root: Path, out: Path, names: list[str], *, max_tokens: int, seed: int, access: Access | None = None
) -> int:
    """Returns the exit code; sessions that were finished are in `out` whatever it is."""
    unknown = [name for name in names if name not in {task.name for task in TASKS}]
    if unknown:
        say(f"--task is {unknown[0]!r}: known are {', '.join(task.name for task in TASKS)}")
        return USAGE
    tasks = [task for task in TASKS if not names or task.name in names]
    try:
        tools = Tools(Workspace(root))
        return asyncio.run(_record(target, tools, tasks, out, {"max_tokens": max_tokens, "seed": seed}, access))
    except PlanFailed as error:
        say(f"{error} (do the tasks fit the folder {root}?)")
        return FAILED
    except OSError as error:
        say(str(error))
        return USAGE


async def _record(
    target: str, tools: Tools, tasks: list[Task], out: Path, options: dict[str, Any], access: Access | None
) -> int:
    console = Console(stderr=True)
    async with AsyncRadixClient(target, access=access) as client:
        about = {
            "model": (await client.model_info()).model,
            "recorded": date.today().isoformat(),
            "sampling": {**SAMPLING, **options},
            "note": NOTE,
        }
        with TraceWriter(out, tools=TOOL_DEFINITIONS, about=about) as writer, progress_on(console) as progress:
            bar = progress.add_task("", total=len(tasks), note="")

            def show(done: TurnDone) -> None:
                what = ", ".join(done.tools) or "answer"
                note = f"turn {done.turn}, {count(done.prompt_tokens)} tokens, {what}"
                progress.update(bar, description=done.session, note=note)

            recorder = Recorder(client, tools, hooks=Hooks(show), **options)
            for task in tasks:
                recorded = await recorder.record(task)
                recorded.write(writer)
                progress.advance(bar)
                console.print(_line(recorded))
    say(f"{len(tasks)} tasks written to {out}")
    return 0


def _line(recorded: RecordedTask) -> Text:
    """What came of a task: the plan's finding is what the tools said, the model's words are in the trace."""
    text = Text(f"{recorded.name}: ", style="bold")
    size = f"{recorded.turns} turns, longest prompt {count(recorded.longest_prompt)} tokens. "
    return text.append(size, style="dim").append(recorded.found, style="not bold")

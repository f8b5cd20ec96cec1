"""A small agent with real tools over a folder, whose loops are recorded as traces. docs/record.md describes it."""

from .recorder import Hooks, RecordedTask, Recorder, TurnDone
from .steps import PlanFailed
from .tasks import TASKS, Task
from .tools import TOOL_DEFINITIONS, Tools
from .workspace import ToolError, Workspace

__all__ = [
    "TASKS",
    "TOOL_DEFINITIONS",
    "Hooks",
    "PlanFailed",
    "RecordedTask",
    "Recorder",
    "Task",
    "ToolError",
    "Tools",
    "TurnDone",
    "Workspace",
]

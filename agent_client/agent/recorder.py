"""Runs tasks with real tools and a live model, and writes down what happened."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..aio import AsyncRadixClient
from ..generate_options import GenerateOptions
from ..messages import ChatMessage
from ..prompts import Chat
from ..traces import Fork, TraceWriter
from .steps import Branch, Plan, Use
from .tasks import Task
from .tools import TOOL_DEFINITIONS, Tools
from .workspace import ToolError

SYSTEM_PROMPT = """\
You answer questions about a software repository. You cannot see it: everything that you know about it comes from \
your tools.

How you work:
- One step at a time. Look where the question points, read what you find, and go on from there.
- List a folder before you guess a file's name. Search before you read. Read the lines around a match, not whole files.
- Never state a number that no tool gave you. Calculate with the calculator, not in your head.
- When a question falls into parts that do not need each other, look into each of them in a branch.
- Paths are relative to the root of the repository. Long results are cut; the first line says how much there is.
- Before each tool call say in one short sentence what you do and why. When you know enough, answer in two sentences."""

# The model's words end where it would begin a call of its own: which call is made is the plan's to say.
STOP = ("<tool", "```", "\n")
# Taken greedily, a small model's words are those of its last turn again.
SAMPLING: GenerateOptions = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.05}


@dataclass(frozen=True)
class TurnDone:
    """One reply of one session. `tools` are the names of the tools that it called."""

    session: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    tools: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Hooks:
    on_turn: Callable[[TurnDone], None] = lambda done: None


@dataclass
class RecordedTask:
    """A task's session and, for those that branch, its branches as sessions of their own.

    Attributes:
        messages: the trunk's, from the system prompt to the last reply.
        found: the answer that the plan looked up, in words.
        branches: name, where it leaves the trunk, its own messages.
        longest_prompt: tokens.
    """

    name: str
    messages: list[ChatMessage]
    found: str = ""
    branches: list[tuple[str, Fork, list[ChatMessage]]] = field(default_factory=list)
    longest_prompt: int = 0

    @property
    def turns(self) -> int:
        """Replies, those of the branches among them."""
        everything = [self.messages, *(messages for _, _, messages in self.branches)]
        return sum(message["role"] == "assistant" for messages in everything for message in messages)

    def write(self, writer: TraceWriter) -> None:
        writer.write_messages(self.name, self.messages)
        for name, parent, messages in self.branches:
            writer.write_messages(name, messages, parent=parent)


class Recorder:
    """Carries tasks out one at a time; branches of a task run side by side."""

    def __init__(
        self, client: AsyncRadixClient, tools: Tools, *, max_tokens: int, seed: int, hooks: Hooks | None = None
    ) -> None:
        self._client = client
        self._tools = tools
        self._max_tokens = max_tokens
        self._seed = seed
        self._hooks = hooks or Hooks()

    async def record(self, task: Task) -> RecordedTask:
        """Raises PlanFailed when a tool's answer leaves the plan nowhere to go, RadixloopError for the runtime's."""
        beginning = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.question}]
        recorded = RecordedTask(task.name, [])
        recorded.messages = list(beginning)
        loop = _Loop(self, recorded, task.name, recorded.messages, inherited=0)
        recorded.found, _ = await loop.run(task.plan())
        return recorded


class _Loop:
    """One conversation, the trunk's or a branch's. `messages` is all of it, `inherited` were the trunk's before."""

    def __init__(
        self, recorder: Recorder, recorded: RecordedTask, name: str, messages: list[ChatMessage], inherited: int
    ) -> None:
        self._recorder = recorder
        self._recorded = recorded
        self._name = name
        self._messages = messages
        self._inherited = inherited
        self._turns = 0

    async def run(self, plan: Plan) -> tuple[str, str]:
        """What the plan found, and the model's last words."""
        result: Any = None
        while True:
            try:
                step = plan.send(result)
            except StopIteration as end:
                return end.value, await self._reply([])
            if isinstance(step, Use):
                result = await self._use(step)
            else:
                result = await self._branch(step)

    async def _use(self, step: Use) -> str:
        (call,) = calls = self._calls([(step.tool, dict(step.arguments))])
        await self._reply(calls)
        began = time.perf_counter()
        try:
            content = await asyncio.to_thread(self._recorder._tools.run, step.tool, step.arguments)
        except ToolError as error:
            content = f"error: {error}"
        latency_s = round(time.perf_counter() - began, 4)
        self._messages.append(_tool_message(call, content, latency_s))
        return content

    async def _branch(self, branches: tuple[Branch, ...]) -> tuple[str, ...]:
        calls = self._calls([("branch", {"question": branch.question}) for branch in branches])
        await self._reply(calls)
        fork = Fork(self._name, self._turns)

        async def one(mine: int, branch: Branch) -> str:
            # Every call has its answer in every branch, so that strict templates accept the conversation.
            started = [
                _tool_message(call, "This conversation is this branch." if i == mine else "Runs in another branch.")
                for i, call in enumerate(calls)
            ]
            asked = {"role": "user", "content": branch.question}
            messages = [*self._messages, *started, asked]
            name = f"{self._name}/{branch.name}"
            loop = _Loop(self._recorder, self._recorded, name, messages, inherited=len(self._messages))
            found, words = await loop.run(branch.plan)
            self._recorded.branches.append((name, fork, messages[loop._inherited :]))
            return f"{found}\n{words}".strip()

        results = await asyncio.gather(*(one(i, branch) for i, branch in enumerate(branches)))
        self._recorded.branches.sort(key=lambda branch: branch[0])
        for call, result in zip(calls, results, strict=True):
            self._messages.append(_tool_message(call, result))
        return tuple(results)

    async def _reply(self, calls: list[dict[str, Any]]) -> str:
        """The model's own words, with the plan's tool calls behind them."""
        recorder = self._recorder
        options: GenerateOptions = {
            **SAMPLING,
            "max_tokens": recorder._max_tokens,
            "seed": zlib.crc32(f"{recorder._seed} {self._name} {self._turns}".encode()),
            "stop": STOP,
        }
        generation = await recorder._client.generate(Chat(self._messages, TOOL_DEFINITIONS), **options)
        words = generation.text.strip()
        self._messages.append({"role": "assistant", "content": words, **({"tool_calls": calls} if calls else {})})
        self._turns += 1
        usage = generation.usage
        self._recorded.longest_prompt = max(self._recorded.longest_prompt, usage.prompt_tokens)
        tools = tuple(call["function"]["name"] for call in calls)
        recorder._hooks.on_turn(
            TurnDone(self._name, self._turns, usage.prompt_tokens, usage.cached_tokens, tools, words)
        )
        return words

    def _calls(self, wanted: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        # A branch counts on from its trunk: an id stands for one call in the whole conversation.
        turn = 1 + sum(message["role"] == "assistant" for message in self._messages)
        return [
            {
                "id": f"call_{turn:02d}{chr(ord('a') + i)}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(wanted)
        ]


def _tool_message(call: dict[str, Any], content: str, latency_s: float | None = None) -> dict[str, Any]:
    message = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": content}
    return message if latency_s is None else {**message, "latency_s": latency_s}

"""LiteLLM, unmodified, in a loop whose tools truly run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import RunningServer
from .gateway_process import running_gateway

# Its own list of prices: it would fetch one from the network when imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
litellm = pytest.importorskip("litellm", reason="make test-frameworks installs it")

pytestmark = [pytest.mark.e2e, pytest.mark.framework, pytest.mark.models]

PAGES = Path(__file__).parents[2] / "docs"
NAMES = ["tree.md", "plan.md"]
TURNS = 4


def read_page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")[:120]


def count_words(name: str) -> str:
    return str(len((PAGES / name).read_text(encoding="utf-8").split()))


RUN = {"read_page": read_page, "count_words": count_words}
PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": NAMES}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in RUN]


def test_a_loop_of_litellm_finds_its_history_in_the_cache(start_server: Callable[..., RunningServer]) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What do the pages say about the tree?"}]
    prompts, cached = [], []
    with running_gateway(start_server("--num-blocks", "400", model="smollm2").target, "--alias", "small") as url:
        for turn in range(TURNS):
            # A model of 135 million parameters calls tools when it must, and talks when it may not.
            told = litellm.completion(
                model="openai/small",
                api_base=f"{url}/v1",
                api_key="none",
                messages=messages,
                tools=TOOLS,
                tool_choice="required" if turn < TURNS - 1 else "none",
                parallel_tool_calls=False,
                max_tokens=48,
                temperature=0,
            )
            reply = told.choices[0].message
            prompts.append(told.usage.prompt_tokens)
            cached.append(told.usage.prompt_tokens_details.cached_tokens)
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            for call in reply.tool_calls or []:
                result = RUN[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print("prompt tokens", prompts, "cached", cached)
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * (TURNS - 1), "assistant"]
    assert messages[-1]["content"]
    for turn in range(1, TURNS):
        assert cached[turn] >= prompts[turn - 1] - 1

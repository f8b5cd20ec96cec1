"""A ReAct loop of LangGraph, unmodified, whose tools truly run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from .conftest import RunningServer
from .gateway_process import running_gateway

langchain_openai = pytest.importorskip("langchain_openai", reason="make test-frameworks installs it")
graphs = pytest.importorskip("langgraph.graph", reason="make test-frameworks installs it")
prebuilt = pytest.importorskip("langgraph.prebuilt", reason="make test-frameworks installs it")
tools_of = pytest.importorskip("langchain_core.tools", reason="make test-frameworks installs it")

pytestmark = [pytest.mark.e2e, pytest.mark.framework, pytest.mark.models]

DESK = Path(__file__).parents[2] / "docs"
FORCED_TURNS = 3


@tools_of.tool
def list_pages(folder: Literal["docs"]) -> str:
    """List the pages in a folder."""
    return " ".join(sorted(path.name for path in DESK.glob("*.md"))[:5])


@tools_of.tool
def read_page(name: Literal["tree.md", "plan.md"]) -> str:
    """Read how a page begins."""
    return (DESK / name).read_text(encoding="utf-8")[:120]


def test_a_loop_of_langgraph_finds_its_history_in_the_cache(start_server: Callable[..., RunningServer]) -> None:
    with running_gateway(start_server("--num-blocks", "400", model="smollm2").target, "--alias", "small") as url:
        chat = langchain_openai.ChatOpenAI(
            base_url=f"{url}/v1", api_key="none", model="small", max_tokens=48, temperature=0
        )
        tools = [list_pages, read_page]
        usages: list[dict[str, Any]] = []

        def think(state: dict[str, Any]) -> dict[str, Any]:
            # A model of 135 million parameters calls tools when it must, and talks when it may not.
            choice = "required" if len(usages) < FORCED_TURNS else "none"
            bound = chat.bind_tools(tools, tool_choice=choice, parallel_tool_calls=False)
            reply = bound.invoke(state["messages"])
            usages.append(reply.response_metadata["token_usage"])
            return {"messages": [reply]}

        graph = graphs.StateGraph(graphs.MessagesState)
        graph.add_node("think", think)
        graph.add_node("tools", prebuilt.ToolNode(tools))
        graph.add_edge(graphs.START, "think")
        graph.add_conditional_edges("think", prebuilt.tools_condition)
        graph.add_edge("tools", "think")
        told = graph.compile().invoke({"messages": [("user", "What do the pages say about the tree?")]})
    results = [message for message in told["messages"] if message.type == "tool"]
    assert len(usages) == FORCED_TURNS + 1
    assert len(results) == FORCED_TURNS
    assert all(message.status == "success" for message in results)
    assert told["messages"][-1].content
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    prompts = [usage["prompt_tokens"] for usage in usages]
    print("prompt tokens", prompts, "cached", cached)
    for turn in range(1, FORCED_TURNS):
        assert cached[turn] >= prompts[turn - 1] - 1

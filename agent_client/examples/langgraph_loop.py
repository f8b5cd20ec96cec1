"""A ReAct loop of LangGraph: `python -m agent_client.examples.langgraph_loop`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from .loop import ASK_FOR_ANSWER, FORCED, MAX_TOKENS, QUESTION, TOOLS, Turn, main


def run(url: str, model: str, key: str) -> list[Turn]:
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, max_tokens=MAX_TOKENS, temperature=0)
    tools = [tool(parse_docstring=True)(function) for function in TOOLS.values()]

    def think(state: dict[str, Any]) -> dict[str, Any]:
        turn = sum(isinstance(message, AIMessage) for message in state["messages"])
        forced = FORCED[turn] if turn < len(FORCED) else None
        asked = [] if forced else [HumanMessage(ASK_FOR_ANSWER)]
        reply = chat.bind_tools(tools, tool_choice=forced or "none").invoke(state["messages"] + asked)
        return {"messages": [*asked, reply]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    told = graph.compile().invoke({"messages": [("user", QUESTION)]})
    messages = [*told["messages"], None]
    return [_turn(reply, after) for reply, after in pairwise(messages) if isinstance(reply, AIMessage)]


def _turn(reply: AIMessage, after: AnyMessage | None) -> Turn:
    usage = reply.response_metadata["token_usage"]
    said = str(reply.content)
    if after is not None:
        (call,) = reply.tool_calls
        said = f"{call['name']} {call['args']}: {after.content}"
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Turn(usage["prompt_tokens"], cached, usage["completion_tokens"], said)


if __name__ == "__main__":
    main(run)

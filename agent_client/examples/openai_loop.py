"""A loop of tool calls with OpenAI's SDK: `python -m agent_client.examples.openai_loop`."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

from .loop import ASK_FOR_ANSWER, FORCED, FUNCTIONS, MAX_TOKENS, QUESTION, TOOLS, Turn, main


def run(url: str, model: str, key: str) -> list[Turn]:
    client = OpenAI(base_url=f"{url}/v1", api_key=key)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    turns = []
    for forced in [*FORCED, None]:
        if forced is None:
            messages.append({"role": "user", "content": ASK_FOR_ANSWER})
        told = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=FUNCTIONS,
            tool_choice={"type": "function", "function": {"name": forced}} if forced else "none",
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        reply, usage = told.choices[0].message, told.usage
        messages.append(reply)
        said = reply.content or ""
        for call in reply.tool_calls or []:
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            said = f"{call.function.name} {call.function.arguments}: {result}"
        cached = usage.prompt_tokens_details.cached_tokens
        turns.append(Turn(usage.prompt_tokens, cached, usage.completion_tokens, said))
    return turns


if __name__ == "__main__":
    main(run)

"""A loop of tool calls with LiteLLM: `python -m agent_client.examples.litellm_loop`."""

from __future__ import annotations

import json
import os
from typing import Any

# Its own list of prices: it would fetch one from the network when imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm

from .loop import ASK_FOR_ANSWER, FORCED, FUNCTIONS, MAX_TOKENS, QUESTION, TOOLS, Turn, main


def run(url: str, model: str, key: str) -> list[Turn]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    turns = []
    for forced in [*FORCED, None]:
        if forced is None:
            messages.append({"role": "user", "content": ASK_FOR_ANSWER})
        told = litellm.completion(
            model=f"openai/{model}",
            api_base=f"{url}/v1",
            api_key=key,
            messages=messages,
            tools=FUNCTIONS,
            tool_choice={"type": "function", "function": {"name": forced}} if forced else "none",
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        reply, usage = told.choices[0].message, told.usage
        messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
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

"""A loop of tool calls with Anthropic's SDK: `python -m agent_client.examples.anthropic_loop`."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic

from .loop import ASK_FOR_ANSWER, DESCRIPTIONS, FORCED, MAX_TOKENS, PARAMETERS, QUESTION, TOOLS, Turn, main


def run(url: str, model: str, key: str) -> list[Turn]:
    client = Anthropic(base_url=url, api_key=key)
    tools: list[Any] = [{"name": name, "description": DESCRIPTIONS[name], "input_schema": PARAMETERS} for name in TOOLS]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    turns = []
    for forced in [*FORCED, None]:
        if forced is None:
            messages[-1]["content"].append({"type": "text", "text": ASK_FOR_ANSWER})
        reply = client.messages.create(
            model=model,
            messages=messages,
            tools=tools,
            tool_choice={"type": "tool", "name": forced} if forced else {"type": "none"},
            max_tokens=MAX_TOKENS,
            # Newer versions of the SDK have no temperature of their own.
            extra_body={"temperature": 0},
        )
        said = "".join(block.text for block in reply.content if block.type == "text")
        results = []
        for call in reply.content:
            if call.type == "tool_use":
                result = TOOLS[call.name](**call.input)
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
                said = f"{call.name} {call.input}: {result}"
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
        usage = reply.usage
        prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
        turns.append(Turn(prompt, usage.cache_read_input_tokens, usage.output_tokens, said))
    return turns


if __name__ == "__main__":
    main(run)

"""A loop of smolagents: `python -m agent_client.examples.smolagents_loop`."""

from __future__ import annotations

from smolagents import ActionStep, LogLevel, OpenAIModel, ToolCallingAgent, tool

from .loop import FORCED, MAX_TOKENS, QUESTION, TOOLS, Turn, main


def run(url: str, model: str, key: str) -> list[Turn]:
    chat = OpenAIModel(
        model, api_base=f"{url}/v1", api_key=key, max_tokens=MAX_TOKENS, temperature=0, parallel_tool_calls=False
    )
    tools = [tool(function) for function in TOOLS.values()]
    agent = ToolCallingAgent(tools, chat, verbosity_level=LogLevel.OFF)
    # It forces a tool call in each step by itself, and lets the model choose which.
    agent.run(QUESTION, max_steps=len(FORCED))
    turns = []
    for step in agent.memory.steps:
        if isinstance(step, ActionStep) and step.model_output_message is not None:
            usage = step.model_output_message.raw.usage
            said = f"{step.tool_calls[0].name} {step.tool_calls[0].arguments}: {step.observations}"
            cached = usage.prompt_tokens_details.cached_tokens
            turns.append(Turn(usage.prompt_tokens, cached, usage.completion_tokens, said))
    return turns


if __name__ == "__main__":
    main(run)

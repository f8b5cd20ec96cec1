"""The examples: loops of other projects' clients, unmodified, whose tools truly run, with a model of real weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from agent_client.examples.loop import FORCED, TOOLS, Module, Turn

from .conftest import RunningServer
from .gateway_process import running_gateway

pytestmark = [pytest.mark.e2e, pytest.mark.framework, pytest.mark.models]

SDKS = ["openai", "anthropic", "litellm", "langgraph"]
MODULES = Path(importlib.import_module("agent_client").__file__ or "").parent


@pytest.fixture(scope="module")
def url(start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    # A tenant each, so that they do not warm each other.
    keys.write_text("".join(f"{name} key-of-{name}\n" for name in [*SDKS, "smolagents"]))
    server = start_server("--num-blocks", "400", model="smollm2")
    with running_gateway(server.target, "--keys", str(keys)) as base:
        yield base


def turns_of(name: str, url: str) -> list[Turn]:
    """Runs an example. Skips the test where its package is not there."""
    # Not imported yet: LiteLLM's example says first that it must fetch nothing.
    if find_spec(name) is None:
        pytest.skip("make test-frameworks installs it")
    example = importlib.import_module(f"agent_client.examples.{name}_loop")
    turns: list[Turn] = example.run(url, "smollm2", f"key-of-{name}")
    print(name, [turn[:3] for turn in turns])
    return turns


def assert_tools_ran(turns: list[Turn]) -> None:
    for turn in turns:
        assert any(turn.said.startswith(tool) for tool in TOOLS)
        (module,) = (name for name in get_args(Module) if name in turn.said.split("}")[0])
        text = (MODULES / module).read_text(encoding="utf-8")
        assert f"{module} has {len(text.splitlines())} lines" in turn.said or text[:80] in turn.said


@pytest.mark.parametrize("name", SDKS)
def test_each_turn_finds_all_of_the_turn_before(name: str, url: str) -> None:
    *calls, answer = turns = turns_of(name, url)
    assert len(turns) == len(FORCED) + 1
    assert [call.said.split()[0] for call in calls] == FORCED
    assert_tools_ran(calls)
    assert answer.said.split()
    assert turns[0].cached_tokens == 0
    # Prompt and reply, but for the one token that nobody has computed.
    for before, turn in pairwise(turns):
        assert turn.cached_tokens >= before.prompt_tokens + before.output_tokens - 1


def test_each_step_of_smolagents_finds_the_prompt_before(url: str) -> None:
    turns = turns_of("smolagents", url)
    assert len(turns) == len(FORCED)
    assert_tools_ran(turns)
    assert turns[0].cached_tokens == 0
    # It tells the calls of its history in words of its own: the reply's tokens are new, all before them are not.
    for before, turn in pairwise(turns):
        assert turn.cached_tokens >= before.prompt_tokens - 1

"""What templates of popular shapes do to histories: found at the start, paid for live, and named in the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import pytest
from radixloop.v1 import cache_pb2, common_pb2, inference_pb2
from transformers.utils import chat_template_utils

from runtime.histories.drift import find_drifts
from runtime.models.loaded_model import LoadedModel
from runtime.prompting.chat import ChatRenderer
from tests.runtime.histories.shapes import HEADERS, LAST_QUESTION, THINKING, UNDATED, splitting_tokenizer
from tests.runtime.services_harness import Answer, Server, generate, serving

SYSTEM = common_pb2.Message(role="system", content="Answer in a word.")
TOOL = '{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}'
DROPS, REWRITES = common_pb2.DRIFT_KIND_DROPS_REASONING, common_pb2.DRIFT_KIND_REWRITES_HISTORY
CLOCK, CALLS = common_pb2.DRIFT_KIND_READS_THE_CLOCK, common_pb2.DRIFT_KIND_REWRITES_CALLS
# These shapes without what makes them drift, but for the words beside calls that the last leaves out.
WORDS_KEPT = UNDATED.replace("{%- if m.tool_calls %}", "{{- m.content | trim }}{% if m.tool_calls %}").replace(
    "{%- else %}{{ m.content | trim }}", ""
)
COMPACT = THINKING.replace("arguments | tojson", "arguments | tojson(separators=(',', ':'))")
FIRST_QUESTION = LAST_QUESTION.replace("{% if m.role == 'user' %}", "{% if m.role == 'user' and asked.at < 0 %}")
Open = Callable[[str], AbstractContextManager[Server]]


@pytest.fixture
def opened(talking: Callable[[str | None], LoadedModel]) -> Open:
    return lambda template: serving(talking(template))


def said(role: str, content: str, *calls: common_pb2.ToolCall) -> common_pb2.Message:
    return common_pb2.Message(role=role, content=content, tool_calls=calls)


def prompt_of(*messages: common_pb2.Message, tools: bool = False) -> common_pb2.Prompt:
    return common_pb2.Prompt(chat=common_pb2.Chat(messages=messages, tools=[TOOL] if tools else []))


def answered(server: Server, prompt: common_pb2.Prompt, words: str, **more: Any) -> Answer:
    """A reply of these very words, in tokens of the model's choice."""
    mode = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_NONE)
    choice = inference_pb2.ChoiceList(texts=[words])
    drawn = {"temperature": 1.0, "seed": 3, "ignore_eos": False}
    answer = generate(server, prompt, 128, choice=choice, tool_choice=mode, sampling=drawn, **more)
    assert answer.text == words
    return answer


def left_by(answer: Answer) -> int:
    usage = answer.finished.usage
    return usage.prompt_tokens + usage.output_tokens - 1


def explained(server: Server, prompt: common_pb2.Prompt) -> cache_pb2.ExplainResponse:
    return server.cache.Explain(cache_pb2.ExplainRequest(prompt=prompt))


def drifts(server: Server) -> list[common_pb2.TemplateDrift]:
    return list(server.inference.GetModelInfo(inference_pb2.GetModelInfoRequest()).template_drifts)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (THINKING, [("drops_reasoning", 2)]),
        (THINKING.replace("loop.index0 > asked.at", "true"), []),
        (HEADERS, [("rewrites_history", 2), ("reads_the_clock", None)]),
        (UNDATED, [("rewrites_history", 2)]),
        (WORDS_KEPT, []),
        (LAST_QUESTION, [("rewrites_history", 1)]),
        (FIRST_QUESTION, [("rewrites_history", 2)]),
    ],
)
def test_what_is_found_at_the_start(template: str, found: list[tuple[str, int | None]]) -> None:
    told = find_drifts(ChatRenderer(splitting_tokenizer(template)))
    assert [(drift.kind, drift.message) for drift in told] == found
    assert all(drift.detail for drift in told)


def test_a_template_that_keeps_histories_costs_nothing(opened: Open) -> None:
    with opened(UNDATED) as server:
        messages = [SYSTEM, said("user", "What is six by nine?")]
        for turn in range(3):
            answer = answered(server, prompt_of(*messages), f"Forty-{turn} or so.")
            messages += [said("assistant", answer.text), said("user", f"And then {turn}?")]
            told = explained(server, prompt_of(*messages))
            assert told.cached_tokens >= left_by(answer)
            assert not told.HasField("divergence")


def test_reasoning_that_a_template_drops_is_computed_again_and_named(opened: Open) -> None:
    with opened(THINKING) as server:
        (drift,) = drifts(server)
        assert (drift.kind, drift.message_index) == (DROPS, 2)
        question = prompt_of(SYSTEM, said("user", "What is six by nine?"))
        words = "<think>\nsix by nine\n</think>\n\nForty-two."
        answer = answered(server, question, words)
        follow = prompt_of(*question.chat.messages, said("assistant", words), said("user", "Why?"))
        told = explained(server, follow)
        # All of the reply is lost, and nothing of what came before it.
        assert told.cached_tokens == answer.finished.usage.prompt_tokens
        assert (told.divergence.message_index, told.divergence.role) == (2, "assistant")
        assert (told.divergence.template.kind, told.divergence.template.message_index) == (DROPS, 2)
        assert "reasoning of message 2" in told.divergence.template.detail
        # The call itself says the same when it is asked to, and nothing otherwise.
        assert generate(server, follow, 2, explain=True).started.divergence == told.divergence
        assert not generate(server, question, 2).started.HasField("divergence")


def test_reasoning_of_a_tool_loop_is_lost_with_the_next_question(opened: Open) -> None:
    call = common_pb2.ToolCall(id="c0", name="look_up", arguments='{"word": "nine"}')
    written = '<think>\nsix\n</think>\n\n<tool_call>\n{"name": "look_up", "arguments": {"word": "nine"}}\n</tool_call>'
    with opened(THINKING) as server:
        messages = [SYSTEM, said("user", "What is six by nine?")]
        first = answered(server, prompt_of(*messages, tools=True), written)
        messages += [said("assistant", "<think>\nsix\n</think>\n\n", call), said("tool", "54")]
        # Within the loop nothing is lost.
        assert explained(server, prompt_of(*messages, tools=True)).cached_tokens >= left_by(first)
        second = answered(server, prompt_of(*messages, tools=True), "Fifty-four.")
        assert second.finished.usage.cached_tokens >= left_by(first)
        messages += [said("assistant", "Fifty-four."), said("user", "Why?")]
        told = explained(server, prompt_of(*messages, tools=True))
        # "<t" begins the reasoning and the call.
        assert 0 <= told.cached_tokens - first.finished.usage.prompt_tokens <= 2
        assert (told.divergence.template.kind, told.divergence.template.message_index) == (DROPS, 2)


def test_a_history_that_is_written_anew_each_turn_is_named(opened: Open) -> None:
    with opened(LAST_QUESTION) as server:
        (drift,) = drifts(server)
        assert (drift.kind, drift.message_index) == (REWRITES, 1)
        question = prompt_of(SYSTEM, said("user", "What is six by nine?"))
        answered(server, question, "Forty-two.")
        told = explained(
            server, prompt_of(*question.chat.messages, said("assistant", "Forty-two."), said("user", "Why?"))
        )
        # <s>[INST] is all that both begin with.
        assert told.cached_tokens == 2
        assert told.divergence.template.kind == REWRITES
        assert told.divergence.template.message_index == told.divergence.message_index == 1


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    class Later:
        @staticmethod
        def now() -> datetime:
            return datetime(2031, 5, 6)

    return lambda: monkeypatch.setattr(chat_template_utils, "datetime", Later)


def test_a_date_that_changed_is_named(opened: Open, tomorrow: Callable[[], None]) -> None:
    with opened(HEADERS) as server:
        assert [drift.kind for drift in drifts(server)] == [REWRITES, CLOCK]
        question = prompt_of(SYSTEM, said("user", "What is six by nine?"))
        answered(server, question, "Forty-two.")
        assert not explained(server, question).HasField("divergence")
        tomorrow()
        told = explained(server, question)
        assert told.divergence.template.kind == CLOCK
        assert not told.divergence.template.HasField("message_index")
        assert told.cached_tokens < 20


@pytest.mark.parametrize("spaces", ["", "  ", "\n"])
def test_calls_that_the_model_wrote_with_other_spaces_are_named(opened: Open, spaces: str) -> None:
    written = f'{{"name":{spaces} "look_up", "parameters":{spaces} {{"word": "nine",{spaces}"by": 6}}}}'
    call = common_pb2.ToolCall(id="c0", name="look_up", arguments='{"word":"nine","by":6}')
    with opened(UNDATED) as server:
        messages = [SYSTEM, said("user", "What is six by nine?")]
        first = answered(server, prompt_of(*messages, tools=True), written)
        messages += [said("assistant", "", call), said("tool", "54")]
        told = explained(server, prompt_of(*messages, tools=True))
        # The call and, where the tokenizer joins them, what stands right before it.
        assert first.finished.usage.prompt_tokens - 1 <= told.cached_tokens < left_by(first)
        assert told.divergence.message_index == 2
        assert (told.divergence.template.kind, told.divergence.template.message_index) == (CALLS, 2)
        sent = server.inference.Tokenize(inference_pb2.TokenizeRequest(prompt=prompt_of(*messages, tools=True)))
        kept = inference_pb2.DetokenizeRequest(token_ids=sent.token_ids, keep_special_tokens=True)
        assert server.inference.Detokenize(kept).text == sent.rendered


@pytest.mark.slow
@pytest.mark.parametrize("template", [THINKING, UNDATED, COMPACT])
def test_calls_of_offered_tools_are_spaced_as_the_template_spaces_them(opened: Open, template: str) -> None:
    digits = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3}
    properties = {"word": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "by": digits}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": "look_up", "strict": True, "parameters": schema}
    tools = [json.dumps({"type": "function", "function": function})]
    asked = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_REQUIRED, names=["look_up"])
    with opened(template) as server:
        messages = [SYSTEM, said("user", "What is six by nine?")]
        for seed in range(4):
            drawn = {"temperature": 1.0, "seed": seed, "ignore_eos": False}
            prompt = common_pb2.Prompt(chat=common_pb2.Chat(messages=messages, tools=tools))
            answer = generate(server, prompt, 200, tool_choice=asked, sampling=drawn)
            [call] = answer.deltas[-1].tool_calls
            # A client that parses the arguments and writes them anew.
            again = json.dumps(json.loads(call.arguments), indent=seed)
            assert again != call.arguments
            made = common_pb2.ToolCall(id=call.id, name=call.name, arguments=again)
            follow = common_pb2.Chat(messages=[*messages, said("assistant", "", made), said("tool", "54")], tools=tools)
            assert explained(server, common_pb2.Prompt(chat=follow)).cached_tokens >= left_by(answer)


def test_a_template_that_takes_no_other_chat_is_told_by_its_token_alone(opened: Open) -> None:
    picky = "{% for m in messages %}{{ m.content if 'word' in m.content else raise_exception('no word') }}{% endfor %}"
    with opened(picky) as server:
        generate(server, prompt_of(said("user", "a word for you")), 2)
        follow = prompt_of(said("user", "a word for me"))
        told = explained(server, follow).divergence
        assert told.position
        assert not told.HasField("message_index")
        assert generate(server, follow, 2, explain=True).started.divergence == told


@pytest.fixture
def misses(opened: Open) -> Iterator[Callable[..., cache_pb2.ExplainResponse]]:
    """Explains a history behind the turn that the cache holds."""
    with opened(THINKING) as server:
        question = [SYSTEM, said("user", "What is six by nine?")]
        answered(server, prompt_of(*question), "<think>\nsix by nine\n</think>\n\nForty-two.")
        yield lambda *messages: explained(server, prompt_of(*messages))


@pytest.mark.parametrize(
    "messages",
    [
        # An edited system prompt, an edited question, a reply of somebody else's, reasoning that the client left out.
        [said("system", "Answer in two words."), said("user", "What is six by nine?")],
        [SYSTEM, said("user", "What is six by ten?")],
        [SYSTEM, said("user", "What is six by nine?"), said("assistant", "No idea."), said("user", "Why?")],
        [SYSTEM, said("user", "What is six by nine?"), said("assistant", "Forty-two."), said("user", "Why?")],
    ],
)
def test_what_the_client_changed_is_no_fault_of_the_template(
    misses: Callable[..., cache_pb2.ExplainResponse], messages: list[common_pb2.Message]
) -> None:
    told = misses(*messages)
    assert told.HasField("divergence")
    assert not told.divergence.HasField("template")

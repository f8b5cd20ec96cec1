"""What a model's template and tokenizer do to histories, asked of a scripted model."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from agent_client.lint import lint_live
from agent_client.prompts import Chat
from agent_client.results import Tokenized
from agent_client.traces import Session, Trace
from agent_client.traces.model import calls_from_messages


class Model:
    """Tokenises with a function and renders with another."""

    def __init__(self, render: Callable[[list[Any]], str], ids: Callable[[str], list[int]] | None = None) -> None:
        self._render = render
        self._ids = ids or (lambda text: [ord(char) for char in text])

    def tokenize(self, prompt: Any, *, add_special_tokens: bool = True, plain: bool) -> Tokenized:
        assert plain
        text = self._render(list(prompt.messages)) if isinstance(prompt, Chat) else prompt
        return Tokenized(array("i", self._ids(text)), text)

    def detokenize(self, ids: array[int]) -> str:
        return "".join(chr(token % 10_000) for token in ids)


def plain(messages: list[Any]) -> str:
    return "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>"


def found(model: Model, *replies: str) -> list[Any]:
    messages = [{"role": "system", "content": "Be brief."}]
    for reply in replies:
        messages += [{"role": "user", "content": "go on"}, {"role": "assistant", "content": reply}]
    trace = Trace("test", (Session("s", calls_from_messages(messages, "s")),))
    return lint_live(trace, model)  # type: ignore[arg-type]


def test_a_template_that_only_appends_is_clean() -> None:
    assert found(Model(plain), "one", "two", "three") == []


def test_a_template_that_drops_reasoning_is_named_once() -> None:
    def render(messages: list[Any]) -> str:
        return plain([{**m, "content": m["content"].split("</think>")[-1]} for m in messages])

    (finding,) = found(Model(render), "<think>well</think>one", "<think>hm</think>two", "three")
    assert (finding.rule, finding.call, finding.message) == ("template-drops-reasoning", 2, 2)


def test_a_template_that_rewrites_earlier_messages_is_found() -> None:
    def render(messages: list[Any]) -> str:
        return f"{len(messages)} messages" + plain(messages)

    (finding,) = found(Model(render), "one", "two", "three")
    assert (finding.rule, finding.call) == ("template-rewrites", 2)
    assert "character 0" in finding.why


def test_a_reply_that_merges_with_what_follows_is_found() -> None:
    def ids(text: str) -> list[int]:
        # A full stop and what follows it are one token.
        out: list[int] = []
        for char in text:
            if out and out[-1] == ord("."):
                out[-1] = 10_000 + ord(".")
            else:
                out.append(ord(char))
        return out

    (finding,) = found(Model(plain, ids), "one.", "two", "three")
    assert (finding.rule, finding.call, finding.message) == ("retokenised-reply", 2, 2)
    assert "from number 3 on" in finding.what
    assert finding.why.startswith("1 of the reply's 4 tokens")


def test_a_template_that_strips_replies_is_found() -> None:
    def render(messages: list[Any]) -> str:
        return plain([{**m, "content": m["content"].strip()} for m in messages])

    (finding,) = found(Model(render), " one", "two", "three")
    assert (finding.rule, finding.call) == ("retokenised-reply", 2)

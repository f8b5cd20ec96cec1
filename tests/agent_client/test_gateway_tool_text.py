"""Text and tool calls told apart at every cut of the stream."""

from __future__ import annotations

import pytest

from agent_client.gateway.tool_text import ToolText

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
BARE = '{"name": "f", "arguments": {}}'


@pytest.mark.parametrize(
    ("written", "has_calls", "shown"),
    [
        ("plain text", False, "plain text"),
        ("", False, ""),
        (f"First. {CALL}", True, "First. "),
        (CALL + CALL, True, ""),
        (f"{CALL} and then", True, ""),
        ("a < b, <tool_ca", False, "a < b, <tool_ca"),
        ("<tool_call>{broken", False, "<tool_call>{broken"),
        (BARE, True, ""),
        (f"\n{BARE}\n", True, ""),
        (f"```json\n{BARE}\n```", True, ""),
        ('{"answer": 42}', False, '{"answer": 42}'),
        ("```python\nprint()\n```", False, "```python\nprint()\n```"),
        ("`code`", False, "`code`"),
        (f"[see] {CALL}", True, "[see] "),
    ],
)
def test_at_every_cut(written: str, has_calls: bool, shown: str) -> None:
    for cut in range(len(written) + 1):
        reader = ToolText()
        assert reader.push(written[:cut]) + reader.push(written[cut:]) + reader.end(has_calls) == shown
    reader = ToolText()
    assert "".join(map(reader.push, written)) + reader.end(has_calls) == shown


def test_text_is_shown_as_soon_as_it_cannot_be_a_call() -> None:
    reader = ToolText()
    assert reader.push("Hello <") == "Hello "
    assert reader.push("b>") == "<b>"
    assert reader.push(" {") == " {"
    fence = ToolText()
    assert fence.push("```py") == ""
    assert fence.push("\nx") == "```py\nx"

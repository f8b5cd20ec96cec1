"""What commands draw, from answers that the runtime could give."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from agent_client import (
    CacheNode,
    CacheStats,
    Divergence,
    Explanation,
    ModelInfo,
    Promotion,
    Span,
    TemplateDrift,
    Verdict,
)
from agent_client.commands import chat, generate, leases, nodes, stats
from agent_client.explaining import explanation_lines
from agent_client.keeping import Lease, Leases
from agent_client.results import TierStats

from .toy_runtime import ToyRuntime

STATS = CacheStats(**{**dict.fromkeys(CacheStats.__dataclass_fields__, 0), "tiers": ()})
MODEL = ModelInfo(
    "tiny", "Llama", 8192, 100, "float32", "cpu", 16, 100, 46080, (2,), True, "f", "sdpa", "r", "i", "0.1.0", "lean"
)


def node(id: int, parent: int, salt: str | None = None, **more: object) -> CacheNode:
    made = CacheNode(id, parent, salt, None, 0, 10, 1, 0, 0.0, 0, 0, f"head {id}")
    return replace(made, **more)  # type: ignore[arg-type]


def shown(renderable: object, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, record=True)
    console.print(renderable)
    return console.export_text()


def test_the_tree_has_a_root_for_each_namespace() -> None:
    first, second = nodes.draw([node(1, 0), node(2, 1, holders=2), node(3, 0, "x"), node(4, 1, head="a\nb")])
    lines = shown(first).splitlines()
    assert [line.strip("│├└─ ").split("  ")[0] for line in lines] == ["no salt", "10 tokens", "10 tokens", "10 tokens"]
    assert "in use by 2" in lines[2]
    assert r"a\nb" in lines[3]
    assert shown(second).startswith("salt 'x'")


def test_names_of_somebody_else_are_shown_on_one_line_and_no_markup() -> None:
    salt = "[red]a\x1b[31m\nb[/]"
    leased = Leases((Lease(1, 10, salt, None, 50, 60.0, "[bold]label", None),), 10, 100)
    (tree,) = nodes.draw([node(1, 0, salt)])
    for text in (shown(leases.table(leased), 120), shown(tree)):
        assert r"salt '[red]a\x1b[31m\nb[/]'" in text
    assert "[bold]label" in shown(leases.table(leased))
    assert nodes.draw([]) == []


def test_a_deep_tree_stays_within_its_lines() -> None:
    (tree,) = nodes.draw([node(i, i - 1, head="long " * 40) for i in range(1, 12)])
    assert len(shown(tree).splitlines()) == 12


def test_stats_have_a_row_for_every_tier() -> None:
    tiers = (
        TierStats("host", 8, 4, 30, 0, 2**20),
        TierStats("disk", 20, 2, 5, 1, 2**18),
        TierStats("persist", 9, 0, 0, 3, 1, True),
    )
    narrow = replace(MODEL, host_kv_dtype="int8")
    rows = dict(stats.rows(narrow, replace(STATS, block_size=16, tiers=tiers)))
    assert rows["KV in tiers"] == "int8"
    assert rows["host tier"] == "4 MiB of 8 MiB, 30 tokens fetched, 0 blocks failed"
    assert rows["disk tier"].endswith("5 tokens fetched, 1 blocks failed")
    assert rows["persist tier"].endswith("3 blocks failed; given up until the next start: it did not answer")


def test_stats_name_what_the_chat_template_does() -> None:
    assert "chat template" not in dict(stats.rows(MODEL, STATS))
    drift = TemplateDrift("reads_the_clock", "writes the date into prompts")
    assert ("chat template", drift.detail) in stats.rows(replace(MODEL, template_drifts=(drift,)), STATS)


def test_an_explanation_names_the_template_s_part() -> None:
    parted = Divergence(1, "ab", "c", ("d",), 2, "assistant", None)
    told = Explanation(3, 1, Verdict((Span(0, 1, "cached"), Span(1, 3, "diverged"))), parted, None, None, "lru")
    drift = TemplateDrift("drops_reasoning", "leaves the reasoning of message 2 out", 2)
    plain = list(explanation_lines(told))
    lines = list(explanation_lines(replace(told, divergence=replace(parted, template=drift))))
    assert [line for line in lines if line not in plain] == ["The chat template leaves the reasoning of message 2 out."]


def test_an_explanation_tells_what_slower_tiers_hold_and_what_fetching_it_takes() -> None:
    held = Promotion(host_tokens=3000, disk_tokens=16, fetch_s=0.02, compute_s=2.5, fetched=True)
    told = Explanation(3017, 3016, Verdict((Span(0, 3016, "cached"),), held), None, None, None, "lru")
    [line] = [line for line in explanation_lines(told) if "host memory" in line]
    assert line.startswith("3,000 in host memory and 16 on disk: to be fetched (fetching takes about 20.0 ms")
    assert line.endswith("computing takes about 2.50 s)")
    unknown = replace(held, disk_tokens=0, fetch_s=None, compute_s=None, fetched=False)
    lines = list(explanation_lines(replace(told, verdict=replace(told.verdict, promotion=unknown))))
    assert "3,000 in host memory: cheaper to compute" in lines
    lines = list(
        explanation_lines(replace(told, verdict=replace(told.verdict, promotion=replace(unknown, kv_dtype="int8"))))
    )
    assert "3,000 in host memory at int8: cheaper to compute" in lines


def test_stats_have_a_row_for_every_figure() -> None:
    rows = dict(
        stats.rows(MODEL, replace(STATS, total_blocks=10, block_size=16, prompt_tokens_total=4, hit_tokens_total=1))
    )
    assert rows["KV"] == "float32, 45 KiB a token"
    assert rows["pool"] == "10 blocks of 16 tokens, 7 MiB"
    assert rows["  from the cache"] == "1 (25.00%)"


def test_what_sharing_and_precision_save_is_told() -> None:
    model = replace(MODEL, kv_dtype="int8", kv_bytes_per_token=1024, plain_kv_bytes_per_token=4096)
    held = replace(STATS, total_blocks=10, free_blocks=6, block_size=16, shared_blocks=2, unused_slots=16)
    rows = dict(stats.rows(model, held))
    assert rows["  unused slots"] == "16 (25.00% of what is held)"
    assert rows["saved by sharing"] == "32 KiB between running sequences"
    assert rows["saved by precision"] == "192 KiB of what is held"


def test_a_reply_that_was_stopped_leaves_the_system_message_to_be_sent(
    toy: ToyRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["first", "second", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    stops = iter([KeyboardInterrupt])
    printed = generate.print_stream

    def stop_once(stream: generate.GenerationStream) -> None:
        for interrupt in stops:
            raise interrupt
        printed(stream)

    monkeypatch.setattr(chat, "print_stream", stop_once)
    assert chat.run(toy.target, "be brief", None, {"max_tokens": 2}) == 0
    sent = [[message.content for message in seen.request.prompt.chat.messages] for seen in toy.seen]
    assert sent[-1] == ["be brief", "second"]


def test_a_reader_that_left_is_no_traceback(toy: ToyRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(stream: generate.GenerationStream) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(generate, "print_stream", left)
    monkeypatch.setattr("sys.stdout", StringIO())
    code = generate.run(toy.target, "x", chat=False, system=None, salt=None, as_json=False, options={"max_tokens": 1})
    assert code == 1

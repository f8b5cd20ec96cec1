"""What the page is made of: the tree of the prompts, places of parting, axes, prices."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_client.replay.records import CallRecord, Run
from agent_client.replay.summary import summarise
from agent_client.replay.tables import found_in_tiers
from agent_client.report.partings import partings
from agent_client.report.prefix_tree import TreeNode, prompt_tree
from agent_client.report.prices import EXAMPLE, BadPrices, cost, read_prices
from agent_client.report.scales import Axis, round_end
from agent_client.report.timeline import timeline
from agent_client.report.tree_rows import LEAVES_SHOWN, cells, shown_nodes
from agent_client.results import Usage

from .report_runs import call, loops


def nodes_of(tops: list[TreeNode]) -> list[TreeNode]:
    return [node for top in tops for node in top.walk()]


def test_the_tree_has_a_node_for_each_shared_stretch() -> None:
    tops = prompt_tree([call("a", 1, [1, 2, 3, 4]), call("b", 1, [1, 2, 5], 2), call("c", 1, [9])])
    (shared, lone) = tops
    assert (shared.start, shared.end, shared.calls, shared.computed) == (0, 2, 2, 2)
    assert [(node.start, node.end, node.calls) for node in shared.children] == [(2, 4, 1), (2, 3, 1)]
    assert (lone.size, list(lone.head_ids)) == (1, [9])


def test_a_growing_history_is_one_node_that_knows_its_turns() -> None:
    (node,) = prompt_tree([call("a", turn, range(10 * turn), 10 * (turn - 1)) for turn in (1, 2, 3)])
    assert (node.start, node.end, node.calls, node.computed) == (0, 30, 3, 30)
    assert node.prompt_ends == {10, 20, 30}


def test_calls_that_did_not_finish_are_no_part_of_it() -> None:
    assert prompt_tree([call("a", 1, [1, 2], ended_s=None), call("a", 1, [])]) == []


@pytest.mark.parametrize("seed", range(30))
def test_the_tree_against_counting_every_prefix(seed: int) -> None:
    draw = random.Random(seed)
    records: list[CallRecord] = []
    for _ in range(draw.randint(1, 25)):
        # Few different tokens make many shared heads; 256 and 1 share a byte and no token.
        prompt = draw.choices([1, 256, 65536], k=draw.randint(1, 8))
        records.append(call("a", 1, prompt, draw.randint(0, len(prompt) - 1)))
    prefixes = {tuple(r.prompt_ids[: i + 1]) for r in records for i in range(len(r.prompt_ids))}
    nodes = nodes_of(prompt_tree(records))
    assert sum(node.size for node in nodes) == len(prefixes)
    assert sum(node.computed for node in nodes) == sum(r.usage.computed_tokens for r in records)
    for node in nodes:
        head = node.tokens[: 4 * (node.start + 1)]
        assert node.calls == sum(r.prompt_ids.tobytes().startswith(head) for r in records)
        assert len(node.children) != 1
        assert all(child.start == node.end and child.parent is node for child in node.children)
        assert node.size > 0


@pytest.mark.slow
def test_a_history_that_branches_thousands_of_times() -> None:
    records = [call("a", i, [*range(i), 9_999]) for i in range(1, 3000)]
    nodes = nodes_of(prompt_tree(records))
    assert sum(not node.children for node in nodes) == 2999
    placed = cells(prompt_tree(records))
    assert sum(cell.hidden for cell in placed) == 2999 - LEAVES_SHOWN


@pytest.mark.parametrize("leaves", [1, 3, LEAVES_SHOWN, LEAVES_SHOWN + 25])
def test_rows_hold_each_branch_and_none_overlaps(leaves: int) -> None:
    tops = prompt_tree([call("a", 1, [1, 2, *([10 + i] * (i + 1))]) for i in range(leaves)])
    placed = cells(tops)
    assert sum(cell.hidden or not cell.node.children for cell in placed if cell.node or cell.hidden) == leaves
    assert {cell.node for cell in placed if cell.node} == set(shown_nodes(tops))
    by_depth: dict[int, list[Any]] = {}
    for cell in placed:
        by_depth.setdefault(cell.depth, []).append(cell)
    for row in by_depth.values():
        assert all(before.row + before.rows <= after.row for before, after in pairwise(row))
    if leaves > LEAVES_SHOWN:
        # The longest are shown.
        assert max(node.end for node in nodes_of(tops)) == max(cell.node.end for cell in placed if cell.node)


def test_partings_are_ranked_by_tokens_and_equal_ones_counted_together() -> None:
    records = [
        call("a", 2, [1, 2, 3, 4, 5], 2, cause="diverged", beside=[[8, 9]]),
        call("b", 2, [1, 2, 3, 4, 5], 2, cause="diverged", beside=[[8, 9]]),
        call("c", 1, [1, 6, 6, 6], 1, cause="diverged", beside=[[7], [2], [3]]),
        call("d", 1, [4, 4, 4, 4], 0, cause="evicted"),
        call("e", 1, [1, 2, 3, 4, 5], 2, cause="diverged", beside=[[8, 9]], ended_s=None),
    ]
    first, second = partings(records, 5)
    assert (first.session, first.turn, first.position, first.calls, first.tokens) == ("a", 2, 2, 2, 6)
    assert (first.shared_ids, first.sent_ids, first.stored_ids) == ((1, 2), (3, 4, 5), ((8, 9),))
    assert second.stored_ids == ((7,), (2,))
    assert partings(records, 1) == [first]


@pytest.mark.parametrize("end", [0, 0.0003, 0.9, 1, 7, 99, 12_345, 3e9])
def test_axes_end_at_a_round_number_and_have_few_ticks(end: float) -> None:
    axis = Axis(round_end(end, 4), 94, 3)
    ticks = list(axis.ticks(4))
    assert end <= axis.end
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 5
    assert ticks[-1] == pytest.approx(axis.end)
    assert axis(0) == 3
    assert axis(axis.end) == 97


def test_the_timeline_has_pauses_calls_and_failures_in_their_places() -> None:
    run = loops(sessions=2, turns=2)
    run.records.append(call("loop 1", 3, [1], started_s=3.6, ended_s=None, error="gone"))
    lanes = timeline(run).lanes
    assert [lane.label for lane in lanes] == ["loop 0", "loop 1"]
    assert [mark.kind for mark in lanes[0].marks] == ["computed", "decode", "pause", "computed", "decode"]
    # Four seconds in all: a pause of 0.4 s before second 1, then 0.3 s to the first token and 0.2 s to the last.
    assert [(mark.x, mark.width) for mark in lanes[0].marks[2:]] == [(15.0, 10.0), (25.0, 7.5), (32.5, 5.0)]
    assert lanes[1].marks[-1].kind == "failed"


def test_hits_are_told_apart_by_tier_where_there_is_more_than_one() -> None:
    tiers = ({"device": 3}, {"device": 1, "host": 4, "disk": 0}, {"disk": 9})
    records = [call("a", turn, [1] * 20, usage=Usage(20, sum(t.values()), 1, 1, t)) for turn, t in enumerate(tiers, 1)]
    run = summarise(Run("cached", records))
    assert run["cached_tokens_by_tier"] == {"device": 4, "host": 4, "disk": 9}
    assert found_in_tiers(run) == "4 in the pool, 4 in host memory, 9 on disk"
    assert found_in_tiers(summarise(Run("cached", records[:1]))) == ""


def test_what_a_run_cost_and_what_it_would_have_cost() -> None:
    run = summarise(loops(sessions=2, turns=2, size=500_000))
    prices = read_prices(None)
    assert prices.is_example
    assert (prices.input, prices.cached_input, prices.output) == (1.0, 0.1, 4.0)
    # Prompts of 1.0, 1.5, 1.0 and 1.5 million tokens, of which 2.5 million were cached.
    assert (run["input_tokens"], run["cached_tokens"]) == (5_000_000, 2_500_000)
    priced = cost(run, prices)
    assert priced.computed_input == pytest.approx(2.5)
    assert priced.cached_input == pytest.approx(0.25)
    assert priced.output == pytest.approx(8 * 4 / 1e6)
    assert priced.full - priced.total == pytest.approx(priced.saved) == pytest.approx(2.25)
    assert priced.saved_share == pytest.approx(2.25 / priced.full)
    free = cost(run, read_prices(None).__class__("free", "USD", 0, 0, 0))
    assert free.saved_share is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no price table"),
        ("[1]", "per_million_tokens"),
        ('{"per_million_tokens": 3}', "per_million_tokens"),
        ('{"per_million_tokens": {"input": 1, "output": 2}}', "cached_input is null"),
        ('{"per_million_tokens": {"input": -1, "cached_input": 0, "output": 2}}', "input is -1"),
        ('{"per_million_tokens": {"input": NaN, "cached_input": 0, "output": 2}}', "input is NaN"),
        ('{"per_million_tokens": {"input": true, "cached_input": 0, "output": 2}}', "input is true"),
        ('{"name": 7, "per_million_tokens": {"input": 1, "cached_input": 0, "output": 2}}', "name"),
        ("[" * 100_000, "no price table"),
    ],
)
def test_a_price_table_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(BadPrices, match=r"prices\.json") as caught:
        read_prices(file)
    assert words in str(caught.value)


def test_a_price_table_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    table = json.loads(EXAMPLE.read_text())
    file.write_text(json.dumps({**table, "name": "ours", "currency": "EUR"}))
    prices = read_prices(file)
    assert (prices.name, prices.currency, prices.is_example) == ("ours", "EUR", False)
    with pytest.raises(BadPrices):
        read_prices(tmp_path / "none.json")

"""The benchmark measures what it says: shapes, keys and books, on small trees."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from radix import bench
from radix.cli import app
from radix.eviction import POLICIES

SMALL = ["bench", "--leaves", "40,80", "--policy", "lru,agent", "--tree-tokens", "30k"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few repeats: what is timed does not matter here."""
    for name in ("match_ns_per_token", "match_500_turns_us", "turn_us", "operations_us", "evict_us"):
        original = getattr(bench, name)
        monkeypatch.setattr(bench, name, lambda *args, original=original: original(*args, repeats=3))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_json_has_every_key_for_the_store_alone_and_with_books() -> None:
    done = CliRunner().invoke(app, [*SMALL, "--json", "-"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert set(result["machine"]) == {"cpu", "system", "python", "numpy"}
    for of in (result, result["as_runtime"]):
        assert of["match_ns_per_token"] > 0
        assert of["match_500_turns_us"] > 0
        assert of["turn_us"] > 0
        assert set(of["turn_parts_us"]) == {"open", "reserve", "commit", "close", "fork"}
        assert set(of["evict_us"]) == {"lru", "agent"}
        assert all(set(times) == {"40", "80"} for times in of["evict_us"].values())
        assert len(of["operations_us"]) == 9
    assert 4 < result["bytes_per_token"] < result["as_runtime"]["bytes_per_token"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_table_names_machine_and_figures() -> None:
    done = CliRunner().invoke(app, [*SMALL, "--bare"], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    for text in ("one thread", "match, 120,000 tokens on one path", "evict a block, agent, 80 leaves", "bytes a token"):
        assert text in done.stdout
    assert "as the runtime has it" not in done.stdout


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_eviction_frees_one_block_at_a_time_under_every_policy(policy: str, full: bool) -> None:
    assert bench.evict_us(bench.Books(full), 30, policy, repeats=15) > 0


@pytest.mark.slow
def test_memory_counts_at_least_the_tokens_themselves() -> None:
    few = bench.bytes_per_token(bench.Books(False), 50_000)
    assert few["tokens"] >= 50_000
    # Four bytes a token, and a twelfth of a pool's books of twelve bytes a block.
    assert few["bytes_per_token"] > 4 + 12 / bench.BLOCK_SIZE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--leaves", "none"], "'none' is no size"),
        (["--leaves", "3"], "3 is too few"),
        (["--policy", "newest"], "known policies are"),
        (["--tree-tokens", "0"], "is below 1"),
    ],
)
def test_bad_options_are_named(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", *options], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert message in done.output

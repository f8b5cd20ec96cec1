"""Comparing servers: the same streams for all, in turns; the books of each dialect; what goes wrong, by name."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_client import AsyncRadixClient, InvalidArgument
from agent_client.bench import BenchOptions, FanOut, bench, open_targets, parse_target
from agent_client.bench.http_target import PeerUnavailable
from agent_client.cli import app
from agent_client.commands.bench import run as run_command
from agent_client.replay import Hooks
from agent_client.traces import Session, Trace

from .peer_servers import PeerServer
from .test_replay import branch, conversation
from .toy_runtime import ToyRuntime

# What the comparison promises for each target.
TARGET_KEYS = (
    *("calls", "input_tokens", "cached_tokens", "hit_rate", "ideal_hit_rate", "wall_s", "errors"),
    *("ttft_first_p50_s", "ttft_later_p50_s", "ttft_later_p95_s", "itl_p50_s", "output_tokens_per_s"),
)


@pytest.fixture
def peer() -> Iterator[Callable[..., PeerServer]]:
    """Starts a peer with these fields."""
    started: list[PeerServer] = []

    def start(**fields: Any) -> PeerServer:
        started.append(PeerServer(**fields))
        return started[-1]

    yield start
    for server in started:
        server.stop()


async def compare(toy: ToyRuntime, peers: list[str], *sessions: Session, **options: Any) -> dict[str, Any]:
    hooks = options.pop("hooks", None)
    chosen = BenchOptions(**{"output_tokens": 4, "concurrency": 1, **options})
    specs = [parse_target(text) for text in [toy.target, *peers]]
    async with AsyncRadixClient(toy.target) as client, open_targets(specs) as targets:
        return await bench(client, targets, Trace("test", sessions), chosen, title="t", hooks=hooks)


def measured(server: PeerServer) -> list[bytes]:
    """The prompts that a peer got, but for the warm-up."""
    return [bytes(body["prompt"]) for body in server.bodies[1:]]


async def test_every_target_gets_the_same_streams_and_reports_the_same_figures(
    toy: ToyRuntime, peer: Callable[..., PeerServer]
) -> None:
    vllm, llama = peer(), peer()
    report = await compare(toy, [f"openai:{vllm.url}/v1", f"llama:{llama.url}"], conversation("a"), conversation("b"))
    assert measured(vllm) == measured(llama) == [seen.prompt for seen in toy.seen[1:]]
    first, *others = report["targets"]
    assert [target["kind"] for target in report["targets"]] == ["radix", "openai", "llama"]
    for target in report["targets"]:
        assert all(target[key] is not None for key in TARGET_KEYS)
        assert target["input_tokens"] == sum(len(prompt) for prompt in measured(vllm))
        # All three toys cache perfectly, and write the same.
        assert target["hit_rate"] == target["ideal_hit_rate"] == first["hit_rate"] > 0.5
        assert target["computed_tokens"] == target["input_tokens"] - target["cached_tokens"]
        assert (target["calls"], target["output_tokens"], target["errors"]) == (6, 24, 0)
        assert target["same_output_share"] == 1.0
    for other, ratios in zip(others, report["ratios"], strict=True):
        assert ratios["name"] == other["name"]
        assert ratios["wall_s"] == first["wall_s"] / other["wall_s"]
    best = min(other["ttft_later_p50_s"] for other in others)
    assert report["ratios_to_best"]["ttft_later_p50_s"] == first["ttft_later_p50_s"] / best


async def test_calls_are_greedy_and_of_fixed_length(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    vllm, llama = peer(), peer()
    await compare(toy, [f"openai:{vllm.url}", f"llama:{llama.url}"], conversation("a", turns=1))
    sent = vllm.bodies[1]
    assert (sent["max_tokens"], sent["ignore_eos"], sent["temperature"], sent["model"]) == (4, True, 0, "toy")
    assert sent["stream_options"] == {"include_usage": True}
    sent = llama.bodies[1]
    assert (sent["n_predict"], sent["ignore_eos"], sent["temperature"], sent["cache_prompt"]) == (4, True, 0, True)


async def test_hits_that_are_rounded_down_show(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    report = await compare(toy, [f"openai:{peer(block=16).url}"], conversation("a"))
    ours, theirs = report["targets"]
    assert theirs["ideal_hit_rate"] == ours["hit_rate"]
    assert 0 < theirs["hit_rate"] < ours["hit_rate"]
    assert theirs["cached_tokens"] % 16 == 0


async def test_every_round_is_cold_and_turns_alternate(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    vllm = peer()
    turns: list[str] = []
    report = await compare(
        toy,
        [f"openai:{vllm.url}"],
        *(conversation(name) for name in "abcd"),
        rounds=2,
        group=2,
        hooks=Hooks(on_run=lambda name, calls: turns.append(f"{name.split(':')[0]} {calls}")),
    )
    assert turns == ["radix 6", "openai 6", "openai 6", "radix 6"] * 2
    prompts = measured(vllm)
    assert len({prompt[:1] for prompt in prompts[:12]}) == 1
    assert not {prompt[:1] for prompt in prompts[:12]} & {prompt[:1] for prompt in prompts[12:]}
    assert [prompt[2:] for prompt in prompts[:12]] == [prompt[2:] for prompt in prompts[12:]]
    for target in report["targets"]:
        # What a round left behind is of no use to the next, also in the reckoning of the optimum.
        assert target["hit_rate"] == target["ideal_hit_rate"]
        assert len(target["turn_wall_s"]) == 4
        assert sum(target["turn_wall_s"]) == pytest.approx(target["wall_s"])


async def test_without_the_cache_nothing_can_hit(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    vllm, llama = peer(), peer()
    report = await compare(toy, [f"openai:{vllm.url}", f"llama:{llama.url}"], conversation("a"), use_cache=False)
    assert [target["cached_tokens"] for target in report["targets"]] == [0, 0, 0]
    assert all(seen.request.bypass_cache for seen in toy.seen[1:])
    assert not any(body["cache_prompt"] for body in llama.bodies[1:])
    assert len({prompt[:1] for prompt in measured(vllm)}) == 3


async def test_branches_share_the_trunk_and_nothing_else(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    vllm = peer()
    text = conversation("the quick brown fox jumps over a lazy dog, ", turns=2, size=20)
    report = await compare(toy, [f"openai:{vllm.url}"], text, fan_out=FanOut(5, 300, 20), rounds=2)
    prompts = measured(vllm)
    assert {len(prompt) for prompt in prompts} == {320}
    for turn in (prompts[:5], prompts[5:]):
        assert len({prompt[:300] for prompt in turn}) == 1
        assert len({prompt[300] for prompt in turn}) == 5
    ideal_computed = 2 * (300 + 5 * 20)
    for target in report["targets"]:
        assert target["input_tokens"] - target["ideal_cached_tokens"] == ideal_computed
        assert target["calls"] == 10
    assert report["workload"] == "fan_out"


async def test_a_trace_too_short_for_the_branches_is_refused(toy: ToyRuntime) -> None:
    with pytest.raises(InvalidArgument, match="too few for 8 branches"):
        await compare(toy, [], conversation("a", turns=1), fan_out=FanOut(8, 3000, 60))


async def test_a_context_that_no_call_fits_is_refused(toy: ToyRuntime) -> None:
    with pytest.raises(InvalidArgument, match="fits a context of 20 tokens"):
        await compare(toy, [], conversation("a"), max_context=20)


async def test_recorded_branches_are_played_too(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    vllm, trunk = peer(), conversation("a")
    report = await compare(toy, [f"openai:{vllm.url}"], trunk, branch("b", trunk, 2))
    assert [target["calls"] for target in report["targets"]] == [5, 5]
    assert all(len({prompt[:2] for prompt in prompts}) == 1 for prompts in [measured(vllm)])


async def test_the_context_has_room_for_the_marker(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    vllm, session = peer(), conversation("a")
    await compare(toy, [f"openai:{vllm.url}"], session)
    longest = max(len(prompt) for prompt in measured(vllm)) + 4
    for limit, calls in ((longest, 3), (longest - 1, 2)):
        report = await compare(toy, [f"openai:{vllm.url}"], session, max_context=limit)
        assert [(t["calls"], t["skipped_calls"]) for t in report["targets"]] == [(calls, 3 - calls)] * 2


async def test_an_endpoint_that_tells_no_ids_is_timed_all_the_same(
    toy: ToyRuntime, peer: Callable[..., PeerServer]
) -> None:
    report = await compare(toy, [f"openai:{peer(tells_ids=False).url}"], conversation("a"))
    theirs = report["targets"][1]
    assert theirs["output_tokens"] == 12
    assert theirs["itl_p50_s"] is not None
    assert theirs["same_output_share"] is None
    assert theirs["hit_rate"] > 0


async def test_an_endpoint_that_does_not_tell_what_was_cached_has_no_hit_rate(
    toy: ToyRuntime, peer: Callable[..., PeerServer]
) -> None:
    report = await compare(toy, [f"openai:{peer(tells_cached=False).url}"], conversation("a"))
    theirs = report["targets"][1]
    assert [theirs[key] for key in ("cached_tokens", "computed_tokens", "hit_rate", "share_of_ideal")] == [None] * 4
    assert theirs["ideal_hit_rate"] > 0
    assert theirs["name"] in report["notes"][-1]


BROKEN = [
    ({"tells_usage": False}, "INTERNAL", "ended without usage"),
    ({"added_tokens": 1}, "INTERNAL", "prompt tokens where"),
    ({"refusal": (400, "prompt is too long")}, "INVALID_ARGUMENT", "status 400: prompt is too long"),
    ({"refusal": (500, "broken")}, "INTERNAL", "status 500: broken"),
    ({"refusal": (503, "Loading model")}, "UNAVAILABLE", "Loading model"),
    ({"raw_chunks": ["data: {broken"]}, "INTERNAL", "no JSON in its stream"),
    ({"raw_chunks": ['data: {"error": {"message": "out of slots"}}']}, "INTERNAL", "out of slots"),
    ({"raw_chunks": ['data: {"choices": 3}']}, "INTERNAL", "no chunk of this API"),
]


@pytest.mark.parametrize(("fields", "code", "words"), BROKEN)
async def test_a_failed_call_names_the_target_and_the_reason(
    toy: ToyRuntime, peer: Callable[..., PeerServer], fields: dict[str, Any], code: str, words: str
) -> None:
    server = peer()

    def break_it(name: str, calls: int) -> None:
        # After the warm-up, which would end the comparison.
        for field, value in fields.items():
            setattr(server, field, value)

    report = await compare(toy, [f"openai:{server.url}"], conversation("a"), hooks=Hooks(on_run=break_it))
    ours, theirs = report["targets"]
    assert (ours["errors"], ours["calls"]) == (0, 3)
    assert (theirs["errors"], theirs["calls"], theirs["skipped_calls"]) == (1, 0, 2)
    (message,) = theirs["error_messages"]
    assert f"{code}: openai:{server.url}: " in message
    assert words in message
    assert report["ratios"][0]["ttft_later_p50_s"] is None


async def test_a_server_that_is_not_there_is_named_before_anything_runs(toy: ToyRuntime) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for kind in ("openai", "llama"):
            with pytest.raises(PeerUnavailable, match=f"{kind}:{url}"):
                await compare(toy, [f"{kind}:{url}"], conversation("a"))


@pytest.mark.parametrize(
    "text", ["", "localhost", "openai:localhost:8000", "llama:", "http://localhost:8000", "radix:x"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="target is"):
        parse_target(text)


def test_targets_are_told_by_their_prefix() -> None:
    assert parse_target("radix:h:1") == parse_target("h:1")
    assert parse_target("openai:http://h:1/v1/").address == "http://h:1"
    assert parse_target("llama:http://h:1").name == "llama:http://h:1"


def test_the_command_prints_json_or_a_table(
    toy: ToyRuntime,
    peer: Callable[..., PeerServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a narrow terminal the ratios are cut off, depending on how wide the figures are.
    monkeypatch.setenv("COLUMNS", "200")
    vllm, out = peer(), tmp_path / "report.json"
    options = BenchOptions(sessions=1, output_tokens=2)
    targets = [toy.target, f"openai:{vllm.url}"]
    assert run_command(None, targets, options, tokenizer=None, format=None, json_file="-") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "radixloop-bench-report"
    assert run_command(None, targets, options, tokenizer=None, format=None, json_file=str(out)) == 0
    shown = capsys.readouterr().out
    assert "1 / 2" in shown
    assert f"openai:{vllm.url}" in shown
    assert json.loads(out.read_text())["targets"][1]["calls"] == report["targets"][1]["calls"] > 0


def test_the_command_line_describes_branches(toy: ToyRuntime, peer: Callable[..., PeerServer]) -> None:
    llama = peer()
    shape = ["--fan-out", "3", "--trunk", "50", "--tail", "5", "--rounds", "2", "--output-tokens", "2"]
    done = CliRunner().invoke(app, ["bench", "-t", toy.target, "-t", f"llama:{llama.url}", *shape, "--json", "-"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["options"]["fan_out"] == {"branches": 3, "trunk": 50, "tail": 5}
    assert [len(prompt) for prompt in measured(llama)] == [55] * 6


async def test_a_peer_without_httpx_says_what_to_install(toy: ToyRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InvalidArgument, match=r"radixloop\[bench\]"):
        await compare(toy, ["llama:http://127.0.0.1:1"], conversation("a"))


def test_the_command_says_what_it_needs(
    toy: ToyRuntime, peer: Callable[..., PeerServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = peer()
    options = BenchOptions(sessions=1, output_tokens=2)
    only = [f"llama:{server.url}"]
    assert run_command(None, only, options, tokenizer=None, format=None, json_file=None) == 1
    assert "--tokenizer" in capsys.readouterr().err
    assert run_command(None, only, options, tokenizer=toy.target, format=None, json_file="-") == 0
    capsys.readouterr()
    server.refusal = (400, "no")
    assert run_command(None, only, options, tokenizer=toy.target, format=None, json_file="-") == 1
    captured = capsys.readouterr()
    assert f"llama:{server.url}: status 400: no" in captured.err
    assert "radix-runtime serve" not in captured.err

"""Traces: what a line means in each format, and what is said about one that is broken."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from radix.errors import InvalidArgument
from radix.traces import TraceError, read_trace

Write = Callable[..., Path]


def session(*requests: object, **fields: object) -> dict[str, object]:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **fields}


def call(length: int, *ids: int) -> dict[str, object]:
    return {"in": length, "hash_ids": list(ids)}


def test_a_subagents_calls_run_at_its_place_and_share_its_sessions_ids(write_trace: Write) -> None:
    subagent = {"type": "subagent", "requests": [call(128, 1, 7), call(192, 1, 7, 8)]}
    trace = read_trace(write_trace(session(call(64, 1), subagent, call(130, 1, 2)), session(call(64, 1))))
    assert trace.format == "claude-code"
    assert trace.unit == 64
    assert trace.sessions == 2
    assert [c.path.tolist() for c in trace.calls] == [[1], [1, 7], [1, 7, 8], [1, 2], [1]]
    assert [c.input_tokens for c in trace.calls] == [64, 128, 192, 130, 64]
    assert len({c.scope for c in trace.calls[:4]}) == 1
    assert trace.calls[4].scope != trace.calls[0].scope
    assert trace.uneven == 0


def test_ids_of_a_global_scope_are_shared_by_all_sessions(write_trace: Write) -> None:
    trace = read_trace(write_trace(*[session(call(64, 1), hash_id_scope="global")] * 2))
    assert [c.scope for c in trace.calls] == ["", ""]


def test_mooncake_calls_share_ids_and_blocks_of_512(write_trace: Write) -> None:
    lines = [{"timestamp": t, "input_length": 1000, "output_length": 5, "hash_ids": [0, t]} for t in (1, 2)]
    trace = read_trace(write_trace(*lines))
    assert (trace.format, trace.unit, trace.sessions, trace.uneven) == ("mooncake", 512, 2, 0)
    assert {c.scope for c in trace.calls} == {""}


def test_a_number_of_ids_that_does_not_go_with_the_length_is_counted(write_trace: Write) -> None:
    lines = [{"input_length": 1000, "hash_ids": ids} for ids in ([0, 1], [0], [0, 1, 2])]
    assert read_trace(write_trace(*lines)).uneven == 1
    trace = read_trace(write_trace(*lines), block_size=64)
    assert trace.uneven == 3
    assert "trace.jsonl:1: 2 hash_ids for input_length 1000, which is 16 blocks of 64" in trace.first_uneven


def test_ids_of_64_bits_stay_apart_and_stay_the_same(write_trace: Write) -> None:
    big = [2**63 + 5, -3, 2**31 - 1, 2**30, 7, 2**30 + 1]
    lines = [{"input_length": 512 * len(ids), "hash_ids": ids} for ids in ([7, 8], big, big[::-1])]
    small, first, second = (c.path.tolist() for c in read_trace(write_trace(*lines)).calls)
    assert small == [7, 8]
    assert first[4] == 7
    assert second == first[::-1]
    assert len(set(first)) == len(big)
    assert 0 <= min(first) <= max(first) < 2**31 - 1


def test_a_token_trace_has_inputs_and_maybe_outputs(write_trace: Write) -> None:
    trace = read_trace(
        write_trace(
            {"session": "a", "tokens": [1, 2, 3]},
            {"session": "b", "input_tokens": [4], "output_tokens": [5, 6]},
            {"session": "a", "tokens": [1, 2, 3, 4]},
        )
    )
    assert (trace.format, trace.unit, trace.sessions, trace.input_tokens) == ("tokens", 1, 2, 8)
    assert [c.output.tolist() for c in trace.calls] == [[], [5, 6], []]


def test_only_the_first_sessions_are_read(write_trace: Write) -> None:
    tokens = [{"session": name, "tokens": [1]} for name in "abacb"]
    assert len(read_trace(write_trace(*tokens), sessions=2).calls) == 4
    hashed = write_trace(session(call(64, 1), call(64, 2)), session(call(64, 1)), "broken")
    assert len(read_trace(hashed, sessions=2).calls) == 3


def test_gzip_is_told_by_content_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_bytes(gzip.compress(b'\n{"session": "a", "tokens": [1]}\n\n{"session": "a", "tokens": [2]}'))
    seen: list[int] = []
    assert len(read_trace(path, on_bytes=seen.append).calls) == 2
    assert 0 < max(seen) <= path.stat().st_size


GOOD = {"session": "a", "tokens": [1]}
MOON = {"input_length": 512, "hash_ids": [1]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{nope"], ":2: not JSON at column 2"),
        ([GOOD, "[1]"], r":2: \[1\] is no JSON object"),
        ([{"prompt": "x"}], ":1: unknown trace format: .* this one has prompt"),
        ([{}], "this one has nothing"),
        ([GOOD, {"session": 5, "tokens": [1]}], ":2: session is 5: it must be a string"),
        ([GOOD, {"session": "a"}], ":2: input_tokens is missing"),
        ([GOOD, {"session": "a", "tokens": []}], ":2: tokens is empty"),
        ([GOOD, {"session": "a", "tokens": [1, -1]}], ":2: tokens holds an id outside 0 .."),
        ([GOOD, {"session": "a", "tokens": [1, 2**70]}], ":2: tokens holds an id outside 0 .."),
        ([GOOD, {"session": "a", "tokens": [1, True]}], r":2: tokens\[1\] is true: it must be a whole number"),
        ([GOOD, {"session": "a", "tokens": [1, 2.0]}], r":2: tokens\[1\] is 2.0"),
        ([GOOD, {"session": "a", "tokens": [1], "input_tokens": [1]}], ":2: tokens and input_tokens are both given"),
        ([GOOD, {"session": "a", "tokens": [1], "output_tokens": "x"}], ':2: output_tokens is "x": it must be a list'),
        ([MOON, {"input_length": 0, "hash_ids": []}], ":2: input_length is 0: it must be a whole number of tokens"),
        ([MOON, {"input_length": True, "hash_ids": []}], ":2: input_length is true"),
        ([MOON, {"input_length": 4}], ":2: hash_ids is missing"),
        ([session(call(64, 1)), session(call(64, 1), block_size=None)], ":2: block_size is missing"),
        ([session(call(64, 1)), session(call(64, 1), block_size=32)], ":2: block_size is 32: the lines before have 64"),
        ([session(call(64, 1)), {"block_size": 64}], ":2: requests is missing"),
        ([session(call(64, 1)), session({"requests": [call(64, 1), 5]})], r":2: requests\[0\].requests\[1\] is 5"),
        ([session(call(64, 1), {"hash_ids": [1]})], r":1: requests\[1\].in is missing"),
        ([session()], "there are no calls in it"),
        ([], "there are no calls in it"),
        (["[" * 100_000], ":1: not JSON"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(write_trace: Write, lines: list[object], message: str) -> None:
    path = write_trace(*lines)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"session": "\xe9"}\n')
    with pytest.raises(TraceError, match=r"latin\.jsonl:1: not UTF-8 at byte 14"):
        read_trace(latin)


@pytest.mark.parametrize("damage", [lambda data: data[:-12], lambda data: data[:200] + bytes(40) + data[240:]])
def test_a_damaged_gzip_stream_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "cut.jsonl.gz"
    lines = "".join(json.dumps({"session": str(i), "tokens": [i * i % 977, i]}) + "\n" for i in range(2000))
    path.write_bytes(damage(gzip.compress(lines.encode())))
    with pytest.raises(TraceError, match=r"cut\.jsonl\.gz:\d+: "):
        read_trace(path)


def test_a_block_size_that_contradicts_the_file_is_refused(write_trace: Write) -> None:
    path = write_trace(session(call(64, 1)))
    assert read_trace(path, block_size=64).unit == 64
    with pytest.raises(InvalidArgument, match=r"block_size is 512: .*trace\.jsonl:1 says 64"):
        read_trace(path, block_size=512)

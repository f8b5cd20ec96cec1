"""`radix inspect`: what it reads back from Redis, how the tree is drawn, and what it says when there is none."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer
from rich.console import Console
from typer.testing import CliRunner

from radix import StoreStats
from radix.inspect import NamespaceNotFound, RuntimeNotFound, RuntimeView, build_forest, read_runtimes
from radix.inspect_cli import inspect
from radix.inspect_render import Cut, duration, printable, render, rows_that_fit
from radix.metadata_client import connect
from radix.metadata_schema import RUNTIMES_KEY, NodeRecord, RuntimeKeys, flat, namespace_label
from runtime.counters import EngineCounters
from runtime.publishing.embedded_redis import EmbeddedRedis

NOW = 1_800_000_000.0

app = typer.Typer()
app.command()(inspect)


def node(node_id: int, parent: int = 0, **more: Any) -> NodeRecord:
    values: dict[str, Any] = {
        "salt": None,
        "adapter": None,
        "start": 0,
        "tokens": 10 * node_id,
        "blocks": node_id,
        "hits": 0,
        "last_used": NOW - 65,
        "holders": 0,
        "children": 0,
        "head": f"head {node_id}",
    }
    return NodeRecord(id=node_id, parent=parent, **{**values, **more})


def view(*nodes: NodeRecord, runtime_id: str = "rt-1", **stats: str) -> RuntimeView:
    registration = {"name": "tiny", "lease_s": "10", "started_at": str(NOW - 60), "incarnation": "abcdef0123456789"}
    return RuntimeView(runtime_id, registration, stats, 0, nodes, 9.0, NOW)


def drawn(views: list[RuntimeView], cut: Cut = Cut(), width: int = 100) -> list[str]:  # noqa: B008
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(views, cut))
    return [line.rstrip() for line in console.export_text().splitlines()]


def tree_lines(lines: list[str]) -> list[str]:
    """The part of each line from the tree's column on."""
    head = next(line for line in lines if line.startswith("tokens"))
    return [line[head.index("prefix") :] for line in lines[lines.index(head) + 1 :]]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as started:
        yield started


@pytest.fixture
def client(server: EmbeddedRedis) -> redis.Redis:
    connected = connect(server.url, 5.0)
    connected.flushall()
    return connected


def publish(client: redis.Redis, runtime_id: str, *nodes: NodeRecord) -> None:
    keys = RuntimeKeys.of(runtime_id)
    client.sadd(RUNTIMES_KEY, runtime_id)
    client.hset(keys.registration, mapping={"model": "tiny", "lease_s": "10"})
    client.pexpire(keys.registration, 10_000)
    client.hset(keys.stats, mapping={"lookup_tokens": 200, "hit_tokens": 150})
    client.hset(keys.sessions, "s", "{}")
    for one in nodes:
        client.hset(keys.nodes, str(one.id), one.to_json())


def test_a_record_survives_the_way_through_json() -> None:
    record = node(3, 1, salt="日本", head='tab\t "quoted" \n', last_used=1.25)
    assert NodeRecord.from_json("3", record.to_json()) == record
    newer = json.loads(record.to_json()) | {"lease": 7}
    assert NodeRecord.from_json("3", json.dumps(newer)) == record, "a field of a later version is passed over"


def test_hash_fields_are_legible() -> None:
    assert flat({"a": True, "b": (1, 2), "c": None, "d": 1.5, "e": "x"}) == {"a": "yes", "b": "1 2", "d": 1.5, "e": "x"}


@pytest.mark.parametrize(
    ("salt", "adapter", "label"),
    [(None, None, "default"), ("x", None, "salt=x"), (None, "x", "adapter=x"), ("x", "y", "salt=x,adapter=y")],
)
def test_namespace_labels_tell_salt_from_adapter(salt: str | None, adapter: str | None, label: str) -> None:
    assert namespace_label(salt, adapter) == label


def test_reads_every_living_runtime(client: redis.Redis) -> None:
    publish(client, "rt-1", node(1), node(2, 1))
    publish(client, "rt-2", node(7))
    first, second = read_runtimes(client)
    assert (first.runtime_id, first.nodes) == ("rt-1", (node(1), node(2, 1)))
    assert (second.runtime_id, second.nodes) == ("rt-2", (node(7),))
    assert (first.registration["model"], first.number("hit_tokens"), first.sessions) == ("tiny", 150, 1)
    assert 0 < first.lease_left_s <= 10
    assert [one.runtime_id for one in read_runtimes(client, "rt-2")] == ["rt-2"]


def test_a_dead_runtime_is_not_shown_and_leaves_the_list(client: redis.Redis) -> None:
    publish(client, "rt-1", node(1))
    publish(client, "rt-2", node(2))
    client.delete(RuntimeKeys.of("rt-1").registration)
    assert [one.runtime_id for one in read_runtimes(client)] == ["rt-2"]
    assert client.smembers(RUNTIMES_KEY) == {"rt-2"}
    with pytest.raises(RuntimeNotFound, match=r"rt-1.*alive are: rt-2"):
        read_runtimes(client, "rt-1")


def test_a_reader_without_write_permission_reads(client: redis.Redis, server: EmbeddedRedis) -> None:
    publish(client, "rt-1", node(1))
    client.sadd(RUNTIMES_KEY, "gone")
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "+@connection", "+@transaction")
    reader = connect(server.url.replace("redis://", "redis://reader:x@"), 5.0)
    assert [one.runtime_id for one in read_runtimes(reader)] == ["rt-1"]
    assert client.sismember(RUNTIMES_KEY, "gone")


def test_one_namespace_only(client: redis.Redis) -> None:
    publish(client, "rt-1", node(1), node(2, salt="a"), node(3, adapter="a"))
    assert [one.id for one in read_runtimes(client, namespace="salt=a")[0].nodes] == [2]
    assert [one.id for one in read_runtimes(client, namespace="default")[0].nodes] == [1]
    with pytest.raises(NamespaceNotFound, match=r"'salt=b'.*adapter=a, default, salt=a"):
        read_runtimes(client, namespace="salt=b")


def test_forest_sums_up_sorts_by_size_and_hides_no_orphan() -> None:
    forest = build_forest([node(1), node(2, 1), node(5, 1), node(3, 2), node(9, 77), node(4, salt="a")])
    assert list(forest) == ["default", "salt=a"]
    orphan, top = forest["default"]
    assert (orphan.node.id, top.node.id) == (1, 9)
    assert (orphan.below_nodes, orphan.below_tokens) == (3, 100)
    assert [child.node.id for child in orphan.children] == [2, 5], "equal sums keep the order of ids"


@pytest.mark.slow
def test_a_tree_deeper_than_the_interpreters_stack_is_drawn() -> None:
    chain = [node(number, number - 1, tokens=1) for number in range(1, 1201)]
    assert len(tree_lines(drawn([view(*chain)]))) == 1200


def test_draws_guides_numbers_and_heads() -> None:
    nodes = (
        node(1, head="You are", hits=12, tokens=4321),
        node(2, 1, holders=3, last_used=NOW - 2),
        node(3, 2),
        node(4, 1, head="two\nlines \x1b[31m"),
    )
    lines = drawn([view(*nodes)])
    assert tree_lines(lines) == ["You are", "├ head 2", "│ └ head 3", "└ two⏎lines ·[31m"]
    top = next(line for line in lines if line.endswith("You are"))
    assert top.split() == ["4,321", "1", "12", "1m", "-", "You", "are"]
    held = next(line for line in lines if line.endswith("head 2"))
    assert held.split()[:5] == ["20", "2", "0", "2.0s", "3"]


def test_a_depth_limit_counts_what_it_hides() -> None:
    nodes = (node(1), node(2, 1), node(3, 2), node(4, 3), node(5, 1))
    lines = tree_lines(drawn([view(*nodes)], Cut(depth=2)))
    assert lines == ["head 1", "├ head 2", "│ └ … 2 nodes below", "└ head 5"]
    assert not any("more nodes" in line for line in lines)


def test_a_row_limit_says_how_much_is_left_out() -> None:
    nodes = [node(number, tokens=1) for number in range(1, 11)]
    lines = tree_lines(drawn([view(*nodes)], Cut(rows=4)))
    assert lines[:4] == ["head 1", "head 2", "head 3", "head 4"]
    assert lines[4].startswith("… 6 more nodes")
    assert len(lines) == 5


def test_namespaces_have_lines_of_their_own() -> None:
    lines = tree_lines(drawn([view(node(1), node(2, salt="a"))]))
    assert lines == ["namespace default", "head 1", "namespace salt=a", "head 2"]


@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("height", [24, 50])
def test_a_watched_terminal_is_filled_and_not_overrun(width: int, height: int) -> None:
    busy = view(*[node(number, salt="a" if number % 2 else None) for number in range(1, 200)], total_blocks="500")
    views = [busy, view(runtime_id="rt-2"), view(*busy.nodes, runtime_id="rt-3")]
    console = Console(width=width, height=height, file=open("/dev/null", "w"))  # noqa: SIM115
    rows = rows_that_fit(console, views)
    lines = drawn(views, Cut(rows=rows), width)
    assert max(len(line) for line in lines) <= width
    if rows > 1:
        assert len(lines) <= height
        assert len(lines) >= height - 2


def test_header_tells_pool_and_reuse() -> None:
    stats = {
        "total_blocks": "400",
        "block_size": "16",
        "active_blocks": "40",
        "cached_blocks": "160",
        "free_blocks": "200",
        "cached_tokens": "3000",
        "lookup_tokens": "2000",
        "hit_tokens": "1900",
    }
    text = "\n".join(drawn([view(node(1), **stats)], width=200))
    assert "400 blocks × 16 · 40 in use · 160 cached · 200 free · 3,000 tokens" in text
    assert "█" * 15 + "░" * 15 in text
    assert "95.0 % of 2,000 prompt tokens were cached ·" in text
    assert "of them from" not in text
    slower = "\n".join(drawn([view(node(1), **stats, host_hit_tokens="300", disk_hit_tokens="0")], width=200))
    assert "were cached · 300 of them from the host tier · 0 evicted" in slower
    assert "up 1m" in text
    assert "incarnation abcdef01" in text
    assert "no prompt yet" in "\n".join(drawn([view()], width=200))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0s"), (0.34, "0.3s"), (12.9, "12s"), (61, "1m"), (7_300, "2h"), (200_000, "2d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_prompt_text_cannot_steer_the_terminal() -> None:
    assert printable("a\nb\r\x1b]0;x\x07\u202ec\x9b") == "a⏎b··]0;x··c·"


def test_command_draws_and_prints_json(client: redis.Redis, server: EmbeddedRedis) -> None:
    publish(client, "rt-1", node(1, last_used=time.time()), node(2, 1, salt=None))
    runner = CliRunner()
    result = runner.invoke(app, ["--redis", server.url], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "rt-1" in result.output
    assert "└ head 2" in result.output

    result = runner.invoke(app, ["--redis", server.url, "--json", "--runtime", "rt-1"])
    assert result.exit_code == 0
    (runtime,) = json.loads(result.stdout)["runtimes"]
    assert runtime["runtime_id"] == "rt-1"
    assert [(one["id"], one["parent"], one["namespace"]) for one in runtime["nodes"]] == [
        (1, 0, "default"),
        (2, 1, "default"),
    ]


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_ctrl_c_ends_watching_as_a_shell_tells_it(
    client: redis.Redis, server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("radix.inspect_cli.time.sleep", stop)
    result = CliRunner().invoke(app, ["--redis", server.url, "--watch", *flags])
    assert result.exit_code == 130
    assert result.output


def test_command_says_what_is_missing(client: redis.Redis, server: EmbeddedRedis) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["--redis", server.url])
    assert result.exit_code == 1
    assert f"no runtime is alive in {server.url}" in result.stderr

    result = runner.invoke(app, ["--redis", server.url, "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"runtimes": []}

    result = runner.invoke(app, ["--redis", "redis://me:secret@127.0.0.1:1"])
    assert result.exit_code == 1
    assert "cannot read from redis://***@127.0.0.1:1" in result.stderr

    result = runner.invoke(app, ["--redis", "http://127.0.0.1"])
    assert result.exit_code == 2
    assert "no Redis URL" in result.stderr

    result = runner.invoke(app, ["--redis", server.url, "--runtime", "a b"])
    assert result.exit_code == 1
    assert "runtime_id is 'a b'" in result.stderr


def test_a_foreign_value_is_named(client: redis.Redis, server: EmbeddedRedis) -> None:
    publish(client, "rt-1", node(1))
    client.hset(RuntimeKeys.of("rt-1").nodes, "5", "not json")
    result = CliRunner().invoke(app, ["--redis", server.url])
    assert result.exit_code == 1
    assert "field 5 of radixloop:v1:{rt-1}:nodes" in result.stderr


def test_the_documentation_names_every_key_and_member() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metadata.md").read_text(encoding="utf-8")
    for key in (RUNTIMES_KEY, *RuntimeKeys.of("ID", "INCARNATION").all()):
        assert f"| `{key}` |" in text, key
    for member in dataclasses.fields(NodeRecord):
        assert member.name == "id" or f"`{member.name}`" in text, member.name
    for counter in (*dataclasses.fields(StoreStats), *dataclasses.fields(EngineCounters)):
        assert f"`{counter.name}`" in text, counter.name

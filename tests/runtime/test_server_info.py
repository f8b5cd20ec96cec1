"""What SGLang's tools ask over HTTP, and the metrics of the KV events, on a runtime that publishes over ZeroMQ."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from runtime.models.loaded_model import LoadedModel
from runtime.monitoring.event_metrics import EventMetrics
from runtime.monitoring.metrics import RuntimeMetrics
from runtime.monitoring.server_info import MAX_BODY_BYTES, ServerInfo
from runtime.publishing.kv_events import KvEventHub
from runtime.publishing.zmq_publisher import ZmqCounters
from tests.runtime.engine_harness import running


def info(endpoint: str = "tcp://127.0.0.1:5557", http_host: str = "127.0.0.1") -> ServerInfo:
    return ServerInfo(
        endpoint=endpoint,
        topic="kv@x",
        block_size=16,
        http_host=http_host,
        vocab_size=100,
        decode=lambda ids: f"{ids.dtype}:{'-'.join(map(str, ids))}",
    )


@pytest.fixture
def url(tiny: LoadedModel) -> Iterator[str]:
    with running(tiny) as harness:
        metrics = RuntimeMetrics(harness.engine, tiny.info, sessions=lambda: 0)
        server = metrics.serve("127.0.0.1", 0, info().beside)
        yield server.url.removesuffix("/metrics")
        server.close()


def post(url: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/detokenize", body), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_publisher_is_described_as_sglang_does(url: str) -> None:
    with urllib.request.urlopen(f"{url}/server_info", timeout=30) as answer:
        told = json.load(answer)
    assert told["page_size"] == 16
    assert told["kv_events"] == {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "kv@x",
        "block_size": 16,
        "dp_size": 1,
    }


@pytest.mark.parametrize(
    ("endpoint", "http_host", "host"),
    [
        ("tcp://0.0.0.0:1", "127.0.0.1", "*"),
        ("tcp://[::]:1", "127.0.0.1", "*"),
        ("tcp://10.0.0.1:1", "10.0.0.1", "*"),
        ("tcp://10.0.0.1:1", "127.0.0.1", "10.0.0.1"),
    ],
)
def test_a_host_is_left_open_only_where_the_callers_own_leads_there(endpoint: str, http_host: str, host: str) -> None:
    assert info(endpoint, http_host)._info["kv_events"]["endpoint_host"] == host


def test_tokens_become_text(url: str) -> None:
    assert post(url, b'{"tokens": [1, 99], "skip_special_tokens": false}') == (200, {"text": "int32:1-99"})


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"not json",
        b"\xff\xfe",
        b'{"tokens": 3}',
        b'{"tokens": [100]}',
        b'{"tokens": [-1]}',
        b'{"tokens": [true]}',
        b'{"tokens": [1.5]}',
        b'{"tokens": ["1"]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_list_of_tokens_is_refused(url: str, body: bytes) -> None:
    status, told = post(url, body)
    assert status == 400
    assert told["error"]


def test_a_body_that_is_too_large_is_not_read(url: str) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/detokenize")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 400
    assert str(MAX_BODY_BYTES) in json.load(answer)["error"]
    connection.close()


def test_the_metrics_are_still_there(url: str) -> None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        assert b"radixloop_engine_up 1.0" in answer.read()


def test_events_are_counted() -> None:
    registry = CollectorRegistry()
    registry.register(EventMetrics(KvEventHub("run-1"), ZmqCounters(published=2, dropped=3, replays=4, snapshots=5)))
    text = generate_latest(registry).decode()
    for name, value in {
        "batches": 1,
        "zmq_published_batches": 2,
        "zmq_dropped_batches": 3,
        "zmq_replays": 4,
        "zmq_snapshots": 5,
    }.items():
        assert f"radixloop_kv_event_{name}_total {value}.0" in text

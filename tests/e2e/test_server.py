"""The server as a process: start, serve, drain, die, start again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from radixloop.v1 import cache_pb2, cache_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc

from tests.ports import free_port
from tests.timing import eventually

pytestmark = pytest.mark.e2e

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = ("radixloop.v1.Inference", "radixloop.v1.Sessions", "radixloop.v1.Cache")


def request(max_tokens: int, seed: int = 0, prompt_tokens: int = 20) -> inference_pb2.GenerateRequest:
    ids = np.random.default_rng(seed).integers(6, 262, prompt_tokens).tolist()
    return inference_pb2.GenerateRequest(
        prompt=common_pb2.Prompt(token_ids=common_pb2.TokenIds(ids=ids)),
        sampling=inference_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )


@pytest.fixture(scope="module")
def channel(server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.target) as opened:
        yield opened


def health(channel: grpc.Channel, service: str) -> int:
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def stats(channel: grpc.Channel) -> cache_pb2.GetStatsResponse:
    return cache_pb2_grpc.CacheStub(channel).GetStats(cache_pb2.GetStatsRequest(), timeout=30)


def token_count(messages: Iterable[inference_pb2.GenerateResponse]) -> int:
    return sum(len(message.delta.token_ids) for message in messages)


def test_every_service_is_healthy(channel: grpc.Channel) -> None:
    assert [health(channel, name) for name in ("", *SERVICES)] == [SERVING] * 4


def test_metrics_and_redis_answer_where_the_ready_file_says(server: Any) -> None:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as scraped:
        assert b"radixloop_engine_up 1.0" in scraped.read()
    with redis.Redis.from_url(server.redis_url) as client:
        assert eventually(lambda: server.runtime_id.encode() in client.smembers("radixloop:v1:runtimes"))


def test_metrics_stay_on_this_machine_where_grpc_does_not(start_server: Callable[..., Any]) -> None:
    opened = start_server("--host", "0.0.0.0", "--insecure")
    listening = {
        connection.laddr
        for connection in psutil.Process(opened.process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    metrics_port = int(opened.metrics_url.rsplit(":", 1)[1].split("/")[0])
    assert {ip for ip, port in listening if port == metrics_port} == {"127.0.0.1"}
    assert {ip for ip, port in listening if port != metrics_port} <= {"0.0.0.0", "::"}


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_reflection_lists_and_describes_the_services(channel: grpc.Channel, version: str) -> None:
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    questions = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="radixloop.v1.Inference"),
    ]
    listed, described = ask(iter(questions), timeout=10)
    names = {service.name for service in listed.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names
    assert any(
        b"radixloop/v1/inference.proto" in file for file in described.file_descriptor_response.file_descriptor_proto
    )


def test_it_generates_and_reuses(channel: grpc.Channel) -> None:
    generate = inference_pb2_grpc.InferenceStub(channel).Generate
    cold, warm = (list(generate(request(8, seed=1), timeout=60)) for _ in range(2))
    assert token_count(cold) == 8
    assert (cold[0].started.usage.cached_tokens, warm[0].started.usage.cached_tokens) == (0, 19)
    assert warm[-1].finished.usage.cached_tokens == 19


def test_a_client_that_is_killed_leaves_no_work_behind(server: Any, channel: grpc.Channel) -> None:
    before = stats(channel)
    script = (
        "import sys, grpc\n"
        "from radixloop.v1 import inference_pb2, inference_pb2_grpc\n"
        "request = inference_pb2.GenerateRequest.FromString(bytes.fromhex(sys.argv[2]))\n"
        "for _ in inference_pb2_grpc.InferenceStub(grpc.insecure_channel(sys.argv[1])).Generate(request):\n"
        "    print('.', flush=True)\n"
    )
    command = [sys.executable, "-c", script, server.target, request(4000, seed=2).SerializeToString().hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        client.kill()
    assert eventually(lambda: stats(channel).cancelled_total == before.cancelled_total + 1)
    after = stats(channel)
    assert (after.running_requests, after.active_blocks) == (0, 0)
    assert after.output_tokens_total - before.output_tokens_total < 4000


def test_a_slow_reader_stalls_nobody_and_gets_everything(channel: grpc.Channel, server: Any) -> None:
    generate = inference_pb2_grpc.InferenceStub(channel).Generate
    # Megabytes through a window that stays at 64 KiB: most of them wait in the runtime, at whatever pace it computes.
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    heavy = request(400, seed=3)
    heavy.sampling.MergeFrom(inference_pb2.SamplingParams(n=8, temperature=1.0, logprobs=True, top_logprobs=20))
    before = stats(channel).output_tokens_total
    with grpc.insecure_channel(server.target, narrow) as stalled:
        slow = inference_pb2_grpc.InferenceStub(stalled).Generate(heavy, timeout=120)
        next(slow)
        with ThreadPoolExecutor(3) as others:
            results = list(others.map(lambda seed: token_count(generate(request(30, seed), timeout=60)), range(4, 7)))
        assert results == [30, 30, 30]
        assert eventually(lambda: stats(channel).output_tokens_total == before + 90 + 3200)
        rest = list(slow)
    assert token_count(rest) == 3200
    assert len(rest) < 1600, "deltas that nobody reads were not joined"
    assert rest[-1].finished.usage.output_tokens == 3200


def test_a_name_for_each_bad_flag() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "serve", "--block-size", "-4"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--block-size" in done.stderr
    assert "at least 1" in done.stderr


def test_pings_every_second_through_a_long_silence(start_server: Callable[..., Any]) -> None:
    server = start_server("--max-running", "1")
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(server.target) as busy, grpc.insecure_channel(server.target, options) as pinging:
        first = inference_pb2_grpc.InferenceStub(busy).Generate(request(4000, seed=7))
        next(first)
        queue = [inference_pb2_grpc.InferenceStub(busy).Generate(request(4000, seed=s)) for s in (8, 9)]
        assert eventually(lambda: stats(busy).waiting_requests == 2)
        # Nothing is sent on this channel until the three before it are through.
        begun = time.monotonic()
        silent = list(inference_pb2_grpc.InferenceStub(pinging).Generate(request(3, seed=10), timeout=250))
        assert token_count(silent) == 3
        assert all(token_count(call) == 4000 for call in queue)
        assert time.monotonic() - begun > 5, "too short a silence to prove anything"
    assert server.stop() == 0


def test_drain_kill_and_restart_on_one_port(start_server: Callable[..., Any], tiny_model: Path) -> None:
    port = str(free_port())
    flags = ("--port", port, "--runtime-id", "same", "--redis", "embedded")

    server = start_server(*flags)
    with grpc.insecure_channel(server.target) as channel:
        generate = inference_pb2_grpc.InferenceStub(channel).Generate
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICES[0]))
        assert next(watch).status == SERVING
        running = generate(request(4000, seed=11), timeout=120)
        next(running)
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as refusal:
            list(generate(request(1, seed=12), timeout=10))
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in refusal.value.details()
        assert token_count(running) == 4000
    assert server.process.wait(60) == 0
    assert "Traceback" not in server.log()

    server = start_server(*flags)
    with grpc.insecure_channel(server.target) as channel:
        next(inference_pb2_grpc.InferenceStub(channel).Generate(request(4000, seed=13)))
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL

    server = start_server(*flags, "--drain-seconds", "600")
    taken = subprocess.run(
        [sys.executable, "-m", "runtime", "serve", "--model", str(tiny_model), "--port", port],
        capture_output=True,
        text=True,
        check=False,
    )
    assert taken.returncode == 2
    assert f"--port: 127.0.0.1:{port} cannot be bound" in taken.stderr
    with grpc.insecure_channel(server.target) as channel:
        assert token_count(inference_pb2_grpc.InferenceStub(channel).Generate(request(5, seed=13), timeout=60)) == 5
        calls = [inference_pb2_grpc.InferenceStub(channel).Generate(request(4000, seed=s)) for s in range(14, 30)]
        next(calls[0])
        server.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: "a second signal" in server.log())
        assert server.stop(signal.SIGINT) == 128 + signal.SIGINT


def test_what_outlasts_the_drain_is_ended(start_server: Callable[..., Any]) -> None:
    server = start_server("--drain-seconds", "0.2", "--log-json")
    with grpc.insecure_channel(server.target) as channel:
        calls = [inference_pb2_grpc.InferenceStub(channel).Generate(request(4000, seed=s)) for s in range(8)]
        for call in calls:
            next(call)
        server.process.send_signal(signal.SIGTERM)
        for call in calls:
            with pytest.raises(grpc.RpcError) as ended:
                list(call)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert server.process.wait(60) == 0
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert [line["message"] for line in lines][-1] == "stopped"
    assert {"time", "level", "logger", "message"} <= set(lines[0])

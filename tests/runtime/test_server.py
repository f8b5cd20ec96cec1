"""What stops a start, told in one line and by exit status."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from radixloop.addresses import is_loopback

from runtime import server
from runtime.config import ServeConfig
from runtime.kv import pool_size
from runtime.models.loaded_model import LoadedModel, ModelInfo
from runtime.ready_file import Ready, write_ready_file
from runtime.settings import BadConfig


@pytest.fixture
def refusal(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Runs a server that must not come to serve; what it logged as an error."""
    monkeypatch.setattr(server, "set_up_logging", lambda level, as_json: None)

    def run(**settings: Any) -> str:
        config = ServeConfig(**{"model": str(tiny_model), "port": 0, "metrics_port": None, **settings})
        with caplog.at_level(logging.ERROR):
            assert server.run_server(config) == 2
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info is None
        return record.getMessage()

    return run


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "/nowhere/model"}, "/nowhere/model"),
        ({"max_context": 5000}, "--max-context: 5000: the model's context ends at 4096"),
        ({"kv_memory": 100 * 2**40}, "--kv-memory: the pool would take 102400.0 GiB"),
        ({"num_blocks": 2**31 - 1}, "--num-blocks: the pool would take"),
        ({"kv_memory": 1024}, "--kv-memory: 1024 bytes: this model needs at least 2 blocks of 8192 bytes"),
        ({"attention": "magic"}, "magic"),
        ({"device": "cuda:7"}, "cuda"),
        ({"host": "203.0.113.1", "insecure": True}, "--port: 203.0.113.1:0 cannot be bound"),
        ({"redis": "redis://host:notaport"}, "redis"),
        ({"ready_file": Path("/nowhere/ready.json")}, "--ready-file: /nowhere/ready.json: No such file"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(refusal: Any, settings: dict[str, Any], words: str) -> None:
    assert words in refusal(**settings)


def test_a_taken_port_is_named(refusal: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"--port: 127.0.0.1:{port} cannot be bound" in refusal(port=port)


def test_a_taken_metrics_port_is_told_before_a_model_is_looked_for(refusal: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"--metrics-port: {port}: " in refusal(model="/nowhere/model", metrics_port=port)


def info(kv_bytes_per_token: int) -> ModelInfo:
    return ModelInfo(
        name="m",
        architecture="a",
        context_length=100,
        vocab_size=10,
        num_layers=1,
        kv_heads=1,
        head_dim=1,
        eos_token_ids=(),
        dtype="float32",
        kv_dtype="float32",
        device="cpu",
        kv_bytes_per_token=kv_bytes_per_token,
        plain_kv_bytes_per_token=kv_bytes_per_token,
        fingerprint="f",
        has_chat_template=False,
        attention_backend="sdpa",
        forward="model",
    )


def test_the_pool_takes_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_size, "machine_memory", lambda: 4 * 2**30)
    monkeypatch.setattr(pool_size, "free_memory", lambda: 3 * 2**30)
    assert pool_size.pool_blocks(ServeConfig(num_blocks=77), info(1000)) == 77
    assert pool_size.pool_blocks(ServeConfig(kv_memory=2**20, block_size=4), info(1024)) == 256
    # A quarter of 4 GiB is less than the 2 GiB that a large machine gives.
    assert pool_size.pool_blocks(ServeConfig(block_size=1), info(2**20)) == 1024
    monkeypatch.setattr(pool_size, "machine_memory", lambda: 64 * 2**30)
    room = int(3 * 2**30 * 0.95) - pool_size.WORK
    assert room // 2**20 > 2048 == pool_size.pool_blocks(ServeConfig(block_size=1), info(2**20))
    assert pool_size.pool_blocks(ServeConfig(block_size=1, kv_memory="auto"), info(2**20)) == room // 2**20
    # What others take meanwhile, the default does not.
    monkeypatch.setattr(pool_size, "free_memory", lambda: 2**30)
    assert 500 < pool_size.pool_blocks(ServeConfig(block_size=1), info(2**20)) < 640
    with pytest.raises(
        BadConfig, match=r"would take 1.0 GiB: cpu has 0.6 GiB to spare, which is 5\d\d tokens at float32"
    ):
        pool_size.pool_blocks(ServeConfig(block_size=1, kv_memory="1GiB"), info(2**20))


def test_the_ready_file_appears_whole(tmp_path: Path) -> None:
    ready = Ready("h:1", 1, None, None, None, "r", "m", 99)
    write_ready_file(tmp_path / "ready.json", ready)
    assert '"target": "h:1"' in (tmp_path / "ready.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("box.lan", False)],
)
def test_what_is_reachable_from_elsewhere(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_model_without_a_context_length_needs_one() -> None:
    loaded = LoadedModel(None, None, info(8), (), None, False, None)  # type: ignore[arg-type]
    assert server.limit_context(loaded, 60).info.context_length == 60
    assert server.limit_context(loaded, None) is loaded
    unknown = LoadedModel(None, None, replace(info(8), context_length=0), (), None, False, None)  # type: ignore[arg-type]
    assert server.limit_context(unknown, 60).info.context_length == 60
    with pytest.raises(BadConfig, match="names no context length"):
        server.limit_context(unknown, None)

"""What a router learns before it sends anything: the model, its tokenizer, the load, and whether to send at all."""

from __future__ import annotations

import builtins
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2
from smg_grpc_proto.generated import common_pb2
from transformers import AutoTokenizer

from runtime.models.loaded_model import LoadedModel
from runtime.settings import BadConfig
from runtime.vllm_engine.availability import served
from runtime.vllm_engine.tokenizer_bundle import chunks, tokenizer_bundle
from tests.runtime.services_harness import BLOCKS, CONTEXT, Server, refused, serving
from tests.timing import eventually

from .router_client import answered, asked, stub


def test_the_model_is_described(server: Server, tiny: LoadedModel) -> None:
    told = stub(server).GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
    assert (told.served_model_name, told.is_generation, told.model_type) == (tiny.info.name, True, "llama")
    assert (told.max_context_length, told.max_req_input_len, told.vocab_size) == (CONTEXT, CONTEXT - 1, 262)
    assert list(told.eos_token_ids) == list(tiny.info.eos_token_ids)


def test_the_server_is_described(server: Server) -> None:
    before = stub(server).GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
    assert (before.block_size, before.data_parallel_size, before.max_num_seqs) == (16, 1, 32)
    call = stub(server).Generate(asked([9] * 20, max_tokens=4000), timeout=60)
    assert eventually(lambda: server.stats().running_requests == 1)
    during = stub(server).GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
    call.cancel()
    assert during.active_requests == 1
    assert during.last_receive_timestamp > before.last_receive_timestamp


def test_the_load_is_told_on_request(server: Server) -> None:
    loads = stub(server).GetLoads
    call = stub(server).Generate(asked([9] * 320, max_tokens=3700), timeout=60)
    assert eventually(lambda: loads(vllm_engine_pb2.GetLoadsRequest()).loads[0].num_running_reqs == 1)
    # The pool's figures may be half a second old.
    assert eventually(lambda: loads(vllm_engine_pb2.GetLoadsRequest()).loads[0].num_used_tokens >= 320)
    (load,) = loads(vllm_engine_pb2.GetLoadsRequest(dp_rank=0)).loads
    call.cancel()
    assert load.max_total_num_tokens == BLOCKS * 16
    assert load.token_usage == pytest.approx(load.num_used_tokens / load.max_total_num_tokens)
    error = refused(lambda: loads(vllm_engine_pb2.GetLoadsRequest(dp_rank=2)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "dp_rank is 2" in error.details()


def test_the_tokenizer_that_is_sent_is_the_one_that_serves(server: Server, tiny: LoadedModel, tmp_path: Path) -> None:
    received = list(stub(server).GetTokenizer(common_pb2.GetTokenizerRequest()))
    archive = b"".join(chunk.data for chunk in received)
    assert [bool(chunk.sha256) for chunk in received] == [False] * (len(received) - 1) + [True]
    assert received[-1].sha256 == hashlib.sha256(archive).hexdigest()
    zipfile.ZipFile(io.BytesIO(archive)).extractall(tmp_path)
    assert (tmp_path / "config.json").exists()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "system", "content": "Be brief — naïve."}, {"role": "user", "content": "Hello <|end|>"}]
    rendered = [
        one.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for one in (tokenizer, tiny.tokenizer)
    ]
    assert rendered[0] == rendered[1]
    assert tokenizer(rendered[0])["input_ids"] == tiny.tokenizer(rendered[0])["input_ids"]


def test_archives_of_one_tokenizer_are_the_same_bytes(tiny: LoadedModel) -> None:
    assert tokenizer_bundle(tiny) == tokenizer_bundle(tiny)


def test_an_archive_is_cut_where_it_must_be() -> None:
    whole = bytes(range(256)) * 4096
    pieces = list(chunks(whole))
    assert len(pieces) == 4
    assert b"".join(piece.data for piece in pieces) == whole
    assert [piece.sha256 for piece in pieces] == ["", "", "", hashlib.sha256(whole).hexdigest()]


def test_a_runtime_that_drains_is_not_healthy(tiny: LoadedModel) -> None:
    with serving(tiny) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        name = "vllm.grpc.engine.VllmEngine"

        def healthy() -> tuple[bool, bool]:
            told = health.Check(health_pb2.HealthCheckRequest(service=name))
            ours = stub(server).HealthCheck(vllm_engine_pb2.HealthCheckRequest())
            return told.status == health_pb2.HealthCheckResponse.SERVING, ours.healthy

        assert eventually(lambda: healthy() == (True, True))
        call = stub(server).Generate(asked([9] * 20, max_tokens=4000), timeout=60)
        assert eventually(lambda: server.stats().running_requests == 1)
        server.stop()
        assert eventually(lambda: healthy() == (False, False))
        error = refused(lambda: stub(server).Generate(asked([9]), timeout=20))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        call.cancel()


def test_the_service_can_be_left_out(tiny: LoadedModel) -> None:
    with serving(tiny, vllm_engine="off") as server:
        error = refused(lambda: answered(server, asked([9])))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_without_its_stubs_auto_leaves_it_out_and_on_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served("auto")
    assert served("on")
    real = builtins.__import__

    def without(name: str, *more: Any, **also: Any) -> Any:
        if name.startswith("smg_grpc_proto"):
            raise ImportError("No module named 'smg_grpc_proto'")
        return real(name, *more, **also)

    monkeypatch.setattr(builtins, "__import__", without)
    assert not served("auto")
    with pytest.raises(BadConfig, match=r"radixloop\[router\]"):
        served("on")

"""VllmEngine.Generate and Abort over a real engine: what is sent is what is meant, and nothing is left behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from smg_grpc_proto import vllm_engine_pb2
from smg_grpc_proto.generated import common_pb2

from runtime.models.loaded_model import LoadedModel
from runtime.tiers.slot_file import SlotFile
from tests.runtime.services_harness import BLOCKS, CONTEXT, Server, generate, ids_prompt, refused, serving
from tests.timing import eventually

from .router_client import answered, asked, stub


def ids(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(6, 262, length).tolist()


@pytest.mark.parametrize("stream", [False, True])
def test_a_router_gets_what_the_runtime_s_own_service_gives(server: Server, stream: bool) -> None:
    prompt = ids(60, seed=1)
    plain = generate(server, ids_prompt(*prompt))
    chunks, (complete,) = answered(server, asked(prompt, stream=stream))
    assert list(complete.output_ids) == plain.ids
    assert (complete.prompt_tokens, complete.completion_tokens, complete.finish_reason) == (60, 8, "length")
    assert complete.cached_tokens == 59
    assert [i for chunk in chunks for i in chunk.token_ids] == (plain.ids if stream else [])
    assert sum(chunk.completion_tokens for chunk in chunks) == (8 if stream else 0)
    assert {(chunk.prompt_tokens, chunk.cached_tokens) for chunk in chunks} == ({(60, 59)} if stream else set())


def test_text_is_tokenized_here(server: Server) -> None:
    request = asked([], max_tokens=4)
    request.ClearField("tokenized")
    request.text = "The quick brown fox."
    _, (complete,) = answered(server, request)
    assert complete.prompt_tokens == len("The quick brown fox.")


def test_numbers_that_are_not_set_mean_what_vllm_takes_them_for(server: Server) -> None:
    """top_p, n and repetition_penalty read as 0 where nobody set them, and the temperature is 1."""
    bare = vllm_engine_pb2.SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    spelled_out = vllm_engine_pb2.SamplingParams(
        max_tokens=12, seed=3, ignore_eos=True, temperature=1.0, top_p=1.0, repetition_penalty=1.0, n=1
    )
    greedy = vllm_engine_pb2.SamplingParams(max_tokens=12, seed=3, ignore_eos=True, temperature=0.0)
    outputs = []
    for params in (bare, spelled_out, greedy):
        request = asked(ids(40, seed=2))
        request.sampling_params.CopyFrom(params)
        _, (complete,) = answered(server, request)
        outputs.append(list(complete.output_ids))
    assert outputs[0] == outputs[1] != outputs[2]


def test_every_field_of_the_sampling_is_heeded(server: Server) -> None:
    prompt = ids(40, seed=3)
    told = {"temperature": 0.8, "top_p": 0.7, "top_k": 9, "min_p": 0.05, "seed": 11, "repetition_penalty": 1.3}
    told |= {"presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {7: 4.0}}
    plain = generate(server, ids_prompt(*prompt), 16, sampling=told)
    _, (complete,) = answered(server, asked(prompt, **{**told, "max_tokens": 16}))
    assert list(complete.output_ids) == plain.ids


def test_without_max_tokens_a_reply_may_fill_the_context(server: Server) -> None:
    request = asked(ids(CONTEXT - 5, seed=4))
    for max_tokens in (None, 100_000):
        request.sampling_params.ClearField("max_tokens")
        if max_tokens is not None:
            request.sampling_params.max_tokens = max_tokens
        _, (complete,) = answered(server, request)
        assert (complete.completion_tokens, complete.finish_reason) == (5, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_choices_carry_their_index_and_share_the_prompt(server: Server, stream: bool) -> None:
    request = asked(ids(50, seed=5), n=3, temperature=1.0, seed=2, max_tokens=6, stream=stream)
    chunks, completes = answered(server, request)
    assert sorted(complete.index for complete in completes) == [0, 1, 2]
    for complete in completes:
        assert complete.completion_tokens == 6
        if stream:
            mine = [i for chunk in chunks if chunk.index == complete.index for i in chunk.token_ids]
            assert mine == list(complete.output_ids)


def test_logprobs_come_one_for_each_token(server: Server) -> None:
    prompt = ids(30, seed=6)
    plain = generate(server, ids_prompt(*prompt), 5, sampling={"logprobs": True, "top_logprobs": 3})
    steps = [step for delta in plain.deltas for step in delta.logprobs]
    _, (whole,) = answered(server, asked(prompt, logprobs=3, max_tokens=5))
    chunks, (last,) = answered(server, asked(prompt, logprobs=3, max_tokens=5, stream=True))
    assert list(whole.output_logprobs.token_ids) == plain.ids
    assert list(whole.output_logprobs.token_logprobs) == pytest.approx([s.sampled.logprob for s in steps], rel=1e-4)
    for top, step in zip(whole.output_logprobs.top_logprobs, steps, strict=True):
        assert list(top.token_ids) == [one.token_id for one in step.top]
    assert [i for chunk in chunks for i in chunk.output_logprobs.token_ids] == plain.ids
    assert not last.HasField("output_logprobs")
    _, (bare,) = answered(server, asked(prompt, logprobs=0, max_tokens=5))
    assert list(bare.output_logprobs.token_ids) == plain.ids
    assert not bare.output_logprobs.top_logprobs


def test_what_stopped_a_choice_is_named(server: Server) -> None:
    prompt = ids(30, seed=7)
    plain = generate(server, ids_prompt(*prompt), 30)
    at = plain.ids[4]
    _, (by_id,) = answered(server, asked(prompt, stop_token_ids=[at], max_tokens=30))
    assert by_id.finish_reason == "stop"
    assert by_id.matched_token_id == at
    assert list(by_id.output_ids) == plain.ids[: plain.ids.index(at) + 1]
    text = next(c for c in plain.text if c.isascii() and c.isprintable())
    _, (by_text,) = answered(server, asked(prompt, stop=[text], max_tokens=30))
    assert (by_text.finish_reason, by_text.matched_stop_str) == ("stop", text)
    assert list(by_text.output_ids) == plain.ids[: len(by_text.output_ids)]


class Stream:
    """A request that runs in a thread until it ends."""

    def __init__(self, server: Server, request: Any) -> None:
        self.messages: list[Any] = []
        self._call = stub(server).Generate(request, timeout=60)
        self._thread = threading.Thread(target=lambda: self.messages.extend(self._call))
        self._thread.start()

    def completes(self) -> list[Any]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [message.complete for message in self.messages if message.HasField("complete")]


def abort(server: Server, *request_ids: str) -> None:
    stub(server).Abort(vllm_engine_pb2.AbortRequest(request_ids=request_ids), timeout=30)


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_request_ends_with_what_it_has_and_gives_its_blocks_back(server: Server, stream: bool) -> None:
    request = asked(ids(80, seed=8), request_id="mine", n=2, max_tokens=3000, temperature=1.0, stream=stream)
    running = Stream(server, request)
    assert eventually(lambda: server.stats().running_requests == 2)
    abort(server, "somebody else's")
    abort(server, "mine")
    abort(server, "mine")
    completes = running.completes()
    assert [complete.finish_reason for complete in completes] == ["abort", "abort"]
    assert all(complete.completion_tokens < 3000 for complete in completes)
    abort(server, "mine")
    stats = server.idle()
    assert stats.free_blocks + stats.cached_blocks == BLOCKS


def test_a_request_is_aborted_while_it_waits(server: Server) -> None:
    calls = [asked(ids(20, seed=9), request_id=f"r{i}", max_tokens=2000, temperature=1.0) for i in range(60)]
    streams = [Stream(server, call) for call in calls]
    assert eventually(lambda: server.stats().waiting_requests > 0)
    abort(server, *(f"r{i}" for i in range(60)))
    assert {c.finish_reason for one in streams for c in one.completes()} == {"abort"}
    stats = server.idle()
    assert stats.free_blocks + stats.cached_blocks == BLOCKS


def test_an_id_means_all_of_its_calls(server: Server) -> None:
    both = [Stream(server, asked(ids(20, seed=i), request_id="twice", max_tokens=3000)) for i in range(2)]
    assert eventually(lambda: server.stats().running_requests == 2)
    abort(server, "twice")
    assert [one.completes()[0].finish_reason for one in both] == ["abort", "abort"]


def test_a_router_that_hangs_up_ends_its_request(server: Server) -> None:
    call = stub(server).Generate(asked(ids(20, seed=10), max_tokens=4000), timeout=60)
    assert eventually(lambda: server.stats().running_requests == 1)
    call.cancel()
    stats = server.idle()
    assert stats.free_blocks + stats.cached_blocks == BLOCKS


def test_a_flush_waits_for_what_runs_or_is_refused(server: Server) -> None:
    flush = stub(server).FlushCache
    running = Stream(server, asked(ids(80, seed=11), request_id="flushed", max_tokens=3000))
    assert eventually(lambda: server.stats().running_requests == 1)
    refusal = flush(common_pb2.FlushCacheRequest(), timeout=30)
    assert (refusal.success, "nothing was flushed" in refusal.message) == (False, True)
    assert server.stats().active_blocks > 0
    begun = time.monotonic()
    waiting = flush.future(common_pb2.FlushCacheRequest(timeout_s=30.0), timeout=60)
    abort(server, "flushed")
    assert waiting.result().success
    assert time.monotonic() - begun < 30
    running.completes()
    assert server.idle().cached_blocks == 0


def test_a_flush_that_a_disk_does_not_take_is_no_success(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: SlotFile, scope: bytes | None) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(SlotFile, "forget", fails)
    with serving(tiny, disk_cache=f"{tmp_path}:64MiB") as server:
        request = common_pb2.FlushCacheRequest()
        error = refused(lambda: stub(server).FlushCache(request, timeout=30))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "the disk tier" in error.details()


HUGE = 2**32 - 1
HOSTILE: dict[str, tuple[Any, str]] = {
    "no input": (vllm_engine_pb2.GenerateRequest(request_id="x"), "input"),
    "no ids": (asked([]), "tokenized.input_ids is 'empty'"),
    "an id beyond the vocabulary": (asked([9, 9, 262]), "tokenized.input_ids[2] is 262"),
    "an id beyond int32": (asked([HUGE]), f"tokenized.input_ids[0] is {HUGE}"),
    "more ids than the context": (asked([9] * (CONTEXT + 1)), "tokenized.input_ids is '4097 ids'"),
    "millions of ids": (asked([9] * 5_000_000), "tokenized.input_ids is '5000000 ids'"),
    "ten megabytes of text": (vllm_engine_pb2.GenerateRequest(text="x" * 10_000_000), "text is '10000000 bytes'"),
    "no text": (vllm_engine_pb2.GenerateRequest(text=""), "text"),
    "as many ids as the context": (asked([9] * CONTEXT), "tokenized.input_ids is '4096 tokens'"),
    "a huge n": (asked([9], n=HUGE), f"sampling_params.n is {HUGE}"),
    "no tokens": (asked([9], max_tokens=0), "sampling_params.max_tokens is 0"),
    "a temperature that is no number": (asked([9], temperature=float("nan")), "sampling_params.temperature is nan"),
    "a negative top_p": (asked([9], top_p=-0.5), "sampling_params.top_p is -0.5"),
    "all logprobs": (asked([9], logprobs=-1), "sampling_params.logprobs is -1"),
    "many logprobs": (asked([9], logprobs=10**6), "sampling_params.logprobs is 1000000"),
    "prompt logprobs": (asked([9], prompt_logprobs=1), "sampling_params.prompt_logprobs"),
    "min_tokens": (asked([9], min_tokens=5), "sampling_params.min_tokens is 5"),
    "a shortened prompt": (asked([9], truncate_prompt_tokens=5), "sampling_params.truncate_prompt_tokens"),
    "millions of stop ids": (asked([9], stop_token_ids=[9] * 5_000_000), "stop_token_ids is 5000000"),
    "a bias beyond the vocabulary": (asked([9], logit_bias={-4: 1.0}), "sampling_params.logit_bias is -4"),
    "an empty stop string": (asked([9], stop=[""]), "sampling_params.stop is ''"),
    "an endless stop string": (asked([9], stop=["x" * 10_000]), "sampling_params.stop"),
    "a long id": (asked([9], request_id="x" * 1000), "request_id"),
    "another rank": (vllm_engine_pb2.GenerateRequest(text="x", data_parallel_rank=3), "data_parallel_rank is 3"),
    "pixels": (
        vllm_engine_pb2.GenerateRequest(text="x", mm_inputs=vllm_engine_pb2.MultimodalInputs()),
        "mm_inputs",
    ),
    "KV from elsewhere": (vllm_engine_pb2.GenerateRequest(text="x", kv_transfer_params_json="{}"), "kv_transfer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_refused_by_the_field_s_name_and_the_next_request_served(server: Server, name: str) -> None:
    bad, words = HOSTILE[name]
    error = refused(lambda: stub(server).Generate(bad, timeout=20))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
    assert words in error.details()
    _, (complete,) = answered(server, asked([9, 10], max_tokens=2))
    assert complete.completion_tokens == 2


def test_a_negative_id_on_the_wire_is_refused(server: Server) -> None:
    minus_one = b"\xff" * 9 + b"\x01"
    ids_field = b"\x12" + bytes([len(minus_one)]) + minus_one
    wire = b"\x12" + bytes([len(ids_field)]) + ids_field
    raw = server.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")
    error = refused(lambda: raw(wire, timeout=20))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"tokenized.input_ids[0] is {HUGE}" in error.details()


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("Embed", vllm_engine_pb2.EmbedRequest()),
        ("StartProfile", common_pb2.StartProfileRequest()),
        ("StopProfile", common_pb2.StopProfileRequest()),
    ],
)
def test_what_the_runtime_cannot_do_is_unimplemented(server: Server, call: str, request_: Any) -> None:
    error = refused(lambda: getattr(stub(server), call)(request_, timeout=20))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED

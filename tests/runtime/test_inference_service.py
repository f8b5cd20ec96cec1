"""Generate and Tokenize over a real engine with a tiny random Llama."""

from __future__ import annotations

import sys

import grpc
import numpy as np
import pytest
from radixloop.v1 import (
    common_pb2,
    inference_pb2,
)

from runtime.models.loaded_model import LoadedModel
from tests.runtime.services_harness import (
    BLOCKS,
    CONTEXT,
    Server,
    chat_prompt,
    generate,
    ids_prompt,
    prompt_of,
    refused,
    request,
    serving,
)
from tests.timing import eventually


def test_the_books_agree_from_first_message_to_last_and_the_next_turn_hits(server: Server) -> None:
    prompt = prompt_of(100, seed=1)
    cold = generate(server, prompt, 20, return_prompt_ids=True, request_id="mine")
    assert cold.started.request_id == "mine"
    assert list(cold.started.prompt_ids.ids) == list(prompt.token_ids.ids)
    assert cold.started.usage.prompt_tokens == cold.finished.usage.prompt_tokens == 100
    assert cold.started.usage.cached_tokens == cold.finished.usage.cached_tokens == 0
    assert (cold.finished.usage.output_tokens, cold.finished.usage.computed_tokens) == (20, 100)
    assert len(cold.ids) == 20
    assert cold.deltas[-1].finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert 0 <= cold.finished.timing.queue_s <= cold.finished.timing.ttft_s <= cold.finished.timing.total_s
    assert not cold.finished.HasField("session_tokens")

    warm = generate(server, ids_prompt(*prompt.token_ids.ids, *cold.ids, 7, 8, 9), 5)
    for usage in (warm.started.usage, warm.finished.usage):
        assert usage.cached_tokens == usage.cached_by_tier.device == 100 + 20 - 1
    assert warm.finished.usage.computed_tokens == 123 - 119
    assert not warm.started.HasField("prompt_ids")


def test_every_form_of_the_same_prompt_gives_the_same_tokens(server: Server) -> None:
    text = "The quick brown fox — naïve."
    tokenized = server.inference.Tokenize(inference_pb2.TokenizeRequest(prompt=common_pb2.Prompt(text=text)))
    ids = list(tokenized.token_ids.ids)
    assert tokenized.count == len(ids) == len(text.encode())
    raw = common_pb2.TokenIds(le_int32=np.array(ids, "<i4").tobytes())
    answers = [
        generate(server, common_pb2.Prompt(text=text)),
        generate(server, ids_prompt(*ids)),
        generate(server, common_pb2.Prompt(token_ids=raw)),
    ]
    assert answers[0].ids == answers[1].ids == answers[2].ids
    back = server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=tokenized.token_ids))
    assert back.text == text


def test_a_chat_is_rendered_by_the_model_s_template(server: Server) -> None:
    prompt = chat_prompt(("system", "Be brief."), ("user", "Hello"))
    found = server.inference.Tokenize(inference_pb2.TokenizeRequest(prompt=prompt))
    assert found.rendered == "<|system|>Be brief.<|end|>\n<|user|>Hello<|end|>\n<|assistant|>"
    assert generate(server, prompt).ids == generate(server, ids_prompt(*found.token_ids.ids)).ids


def test_detokenize_leaves_special_tokens_out_unless_asked(server: Server) -> None:
    ids = common_pb2.TokenIds(ids=[3, 70, 1])
    plain = server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=ids))
    whole = server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=ids, keep_special_tokens=True))
    assert whole.text == f"<|user|>{plain.text}<|end|>"


def test_choices_share_one_prompt_and_carry_their_index(server: Server) -> None:
    answer = generate(server, prompt_of(60, seed=2), 6, sampling={"n": 3, "temperature": 1.0, "seed": 5})
    by_index = {i: [t for d in answer.deltas if d.index == i for t in d.token_ids] for i in range(3)}
    assert [len(ids) for ids in by_index.values()] == [6, 6, 6]
    assert answer.finished.usage.output_tokens == 18
    assert answer.finished.usage.computed_tokens == 60
    assert sum(d.HasField("finish_reason") for d in answer.deltas) == 3


def test_logprobs_come_one_for_each_token(server: Server) -> None:
    answer = generate(server, prompt_of(30, seed=3), 5, sampling={"logprobs": True, "top_logprobs": 3})
    steps = [step for delta in answer.deltas for step in delta.logprobs]
    assert [step.sampled.token_id for step in steps] == answer.ids
    for step in steps:
        assert len(step.top) == 3
        assert step.top[0].token_id == step.sampled.token_id
        assert step.top[0].logprob == pytest.approx(step.sampled.logprob)
    assert not any(delta.logprobs for delta in generate(server, prompt_of(30, seed=3), 5).deltas)


def test_max_tokens_defaults_to_256_or_what_the_context_leaves(server: Server) -> None:
    sampling = {"ignore_eos": True}
    assert len(generate(server, prompt_of(10, seed=4), None, sampling=sampling).ids) == 256
    assert len(generate(server, prompt_of(CONTEXT - 30, seed=4), None, sampling=sampling).ids) == 30


def test_max_tokens_is_cut_to_the_room_there_is_when_asked_for(server: Server, tiny: LoadedModel) -> None:
    clipped = {"ignore_eos": True, "clip_max_tokens": True}
    assert len(generate(server, prompt_of(CONTEXT - 30, seed=4), 2**31 - 1, sampling=clipped).ids) == 30
    assert len(generate(server, prompt_of(10, seed=4), 3, sampling=clipped).ids) == 3
    error = refused(lambda: generate(server, prompt_of(CONTEXT, seed=4), 9, sampling=clipped))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    with serving(tiny, block_size=1) as small:
        assert len(generate(small, prompt_of(BLOCKS - 19, seed=23), 1000, sampling=clipped).ids) == 20


def test_bypass_neither_reads_nor_writes_the_cache(server: Server) -> None:
    prompt = prompt_of(80, seed=5)
    for _ in range(2):
        assert generate(server, prompt, bypass_cache=True).finished.usage.cached_tokens == 0
    assert generate(server, prompt).finished.usage.cached_tokens == 0
    assert generate(server, prompt, bypass_cache=True).finished.usage.cached_tokens == 0
    assert generate(server, prompt).finished.usage.cached_tokens == 79


def test_namespaces_do_not_share(server: Server) -> None:
    prompt = prompt_of(80, seed=6)
    spaces = [{}, {"salt": "x"}, {"adapter": "x"}, {"salt": ""}, {"salt": "x", "adapter": "x"}]
    for parts in spaces:
        answer = generate(server, prompt, namespace=common_pb2.Namespace(**parts))
        assert answer.finished.usage.cached_tokens == 0, parts
    for parts in spaces:
        answer = generate(server, prompt, namespace=common_pb2.Namespace(**parts))
        assert answer.finished.usage.cached_tokens == 79, parts


def test_model_info(server: Server) -> None:
    info = server.inference.GetModelInfo(inference_pb2.GetModelInfoRequest())
    assert (info.context_length, info.vocab_size, info.block_size, info.num_blocks) == (CONTEXT, 262, 16, BLOCKS)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert info.has_chat_template
    assert list(info.eos_token_ids) == [1]
    assert info.runtime_id
    assert info.incarnation
    assert info.fingerprint


# Ends of all kinds


def test_cancelling_a_call_stops_its_work(server: Server) -> None:
    before = server.idle()
    call = server.inference.Generate(request(prompt_of(50, seed=7), 3000))
    for _ in range(3):
        next(call)
    call.cancel()
    after = server.idle()
    assert after.cancelled_total == before.cancelled_total + 1
    assert after.output_tokens_total - before.output_tokens_total < 3000


def test_a_deadline_stops_the_work(server: Server) -> None:
    before = server.idle()
    error = refused(lambda: server.inference.Generate(request(prompt_of(50, seed=8), 3000), timeout=0.3))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    after = server.idle()
    assert after.cancelled_total == before.cancelled_total + 1
    assert after.output_tokens_total - before.output_tokens_total < 3000


@pytest.mark.slow
def test_a_client_that_stops_reading_delays_nobody_and_loses_nothing(server: Server) -> None:
    slow = server.inference.Generate(request(prompt_of(40, seed=9), 1500))
    next(slow)
    for seed in range(10, 13):
        assert len(generate(server, prompt_of(40, seed=seed), 20).ids) == 20
    # Without a single read the slow stream's work comes to its end.
    server.idle()
    rest = list(slow)
    assert sum(len(message.delta.token_ids) for message in rest) == 1500
    assert rest[-1].finished.usage.output_tokens == 1500


def test_a_full_queue_refuses_with_a_retry_hint(tiny: LoadedModel) -> None:
    with serving(tiny, max_running=1, max_queue=1) as small:
        running = small.inference.Generate(request(prompt_of(20, seed=20), 3000))
        next(running)
        waiting = small.inference.Generate(request(prompt_of(20, seed=21), 4))
        assert eventually(lambda: small.stats().waiting_requests == 1)
        error = refused(lambda: small.inference.Generate(request(prompt_of(20, seed=22), 4)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_queue" in error.details()
        hint = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
        assert int(hint) > 0
        running.cancel()
        assert list(waiting)[-1].HasField("finished")


def test_what_can_never_fit_is_refused_with_both_numbers(tiny: LoadedModel) -> None:
    with serving(tiny, block_size=1) as small:
        error = refused(lambda: generate(small, prompt_of(BLOCKS, seed=23), 20))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(BLOCKS + 19) in error.details()
        assert str(BLOCKS) in error.details()
        assert len(generate(small, prompt_of(BLOCKS - 19, seed=23), 20).ids) == 20


def test_a_lowered_context_holds(tiny: LoadedModel) -> None:
    from runtime.server import limit_context

    with serving(limit_context(tiny, 64)) as small:
        assert small.inference.GetModelInfo(inference_pb2.GetModelInfoRequest()).context_length == 64
        error = refused(lambda: generate(small, prompt_of(64, seed=24), 1))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_ends_the_runtime_instead_of_hanging_its_callers(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tiny, status=1) as doomed:
        # Under everything that the engine itself can handle: its thread ends.
        monkeypatch.setattr(doomed.runtime._engine, "_drop_cancelled", sys.exit)
        error = refused(lambda: generate(doomed, ids_prompt(9)))
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)


HOSTILE: dict[str, tuple[inference_pb2.GenerateRequest, str]] = {
    "no prompt": (inference_pb2.GenerateRequest(), "prompt is"),
    "no form": (inference_pb2.GenerateRequest(prompt=common_pb2.Prompt()), "prompt is"),
    "no tokens": (request(ids_prompt()), "prompt.token_ids is 'empty'"),
    "negative id": (request(ids_prompt(1, -1)), "prompt.token_ids[1] is -1"),
    "id beyond the vocabulary": (request(ids_prompt(1, 262)), "prompt.token_ids[1] is 262"),
    "torn buffer": (request(common_pb2.Prompt(token_ids=common_pb2.TokenIds(le_int32=b"abc"))), "3 bytes"),
    "both forms": (
        request(common_pb2.Prompt(token_ids=common_pb2.TokenIds(ids=[1], le_int32=b"abcd"))),
        "one of the two",
    ),
    "empty text": (request(common_pb2.Prompt(text="")), "prompt.text is"),
    "10 MB of text": (request(common_pb2.Prompt(text="x" * 10_000_000)), f"at most {32 * CONTEXT} bytes"),
    "10 MB of chat": (request(chat_prompt(("user", "x" * 10_000_000))), f"at most {32 * CONTEXT} bytes"),
    "more messages than tokens": (request(chat_prompt(*[("user", "x")] * (CONTEXT + 1))), f"at most {CONTEXT}"),
    "10 million ids": (
        request(common_pb2.Prompt(token_ids=common_pb2.TokenIds(le_int32=b"\5\0\0\0" * 10_000_000))),
        "prompt.token_ids is '10000000 ids'",
    ),
    "prompt as long as the context": (request(prompt_of(CONTEXT, seed=0), 1), f"ends at {CONTEXT}"),
    "prompt and max_tokens beyond the context": (request(prompt_of(4000, seed=0), 97), "at most 96"),
    "max_tokens of 2^31 - 1": (request(ids_prompt(9), 2**31 - 1), "sampling.max_tokens is 2147483647"),
    "max_tokens 0": (request(ids_prompt(9), 0), "sampling.max_tokens is 0"),
    "NaN temperature": (request(ids_prompt(9), sampling={"temperature": float("nan")}), "sampling.temperature is nan"),
    "infinite temperature": (request(ids_prompt(9), sampling={"temperature": float("inf")}), "sampling.temperature"),
    "top_p 0": (request(ids_prompt(9), sampling={"top_p": 0.0}), "sampling.top_p is 0.0"),
    "65 choices": (request(ids_prompt(9), sampling={"n": 65}), "sampling.n is 65"),
    "empty stop string": (request(ids_prompt(9), sampling={"stop": [""]}), "sampling.stop"),
    "stop string of 1 MB": (request(ids_prompt(9), sampling={"stop": ["x" * 2**20]}), "sampling.stop"),
    "NaN bias": (request(ids_prompt(9), sampling={"logit_bias": {3: float("nan")}}), "sampling.logit_bias[3]"),
    "bias beyond the vocabulary": (request(ids_prompt(9), sampling={"logit_bias": {999: 1.0}}), "sampling.logit_bias"),
    "empty chat": (request(common_pb2.Prompt(chat=common_pb2.Chat())), "prompt.chat.messages is 'empty'"),
    "role unknown to the template": (request(chat_prompt(("wizard", "x"))), "wizard"),
    "tools that are no JSON": (request(chat_prompt(("user", "x"), tools=["{"])), "prompt.chat.tools[0]"),
    "deep JSON": (request(chat_prompt(("user", "x"), template_kwargs="[" * 50_000)), "prompt.chat.template_kwargs"),
    "half a surrogate pair in JSON": (
        request(chat_prompt(("user", "x"), tools=['{"type":"function","function":{"name":"f","d":"\\ud800"}}'])),
        "prompt.chat",
    ),
    "template variables that replace the messages": (
        request(chat_prompt(("user", "x"), template_kwargs='{"messages": []}')),
        "prompt.chat.template_kwargs",
    ),
    "long salt": (request(ids_prompt(9), namespace=common_pb2.Namespace(salt="x" * 2000)), "namespace.salt"),
    "long request id": (request(ids_prompt(9), request_id="x" * 1000), "request_id"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_refused_and_the_next_request_served(server: Server, name: str) -> None:
    bad, words = HOSTILE[name]
    error = refused(lambda: server.inference.Generate(bad, timeout=20))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
    assert words in error.details()
    assert len(generate(server, ids_prompt(9, 10), 2).ids) == 2


def test_broken_utf8_on_the_wire_is_refused_and_the_next_request_served(server: Server) -> None:
    good = request(ids_prompt(9), sampling={"stop": ["QQQQ"]}).SerializeToString()
    raw = server.channel.unary_stream("/radixloop.v1.Inference/Generate")
    error = refused(lambda: raw(good.replace(b"QQQQ", b"\xff\xfe\xff\xfe"), timeout=20))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in error.details()
    assert len(generate(server, ids_prompt(9, 10), 2).ids) == 2

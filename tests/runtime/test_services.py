"""The gRPC services over a real engine with a tiny random Llama."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from radixloop.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    common_pb2,
    inference_pb2,
    inference_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
)

from runtime.config import ServeConfig
from runtime.grpc_server import GrpcServer
from runtime.loaded_model import LoadedModel
from runtime.loader import load_model
from runtime.server import Runtime

CONTEXT = 4096
BLOCKS = 600


class Stop:
    """Stands for the signals, which only a main thread can receive."""

    def __init__(self) -> None:
        self.may_drain = False
        self.asked = asyncio.Event()

    async def wait(self) -> None:
        await self.asked.wait()


@dataclass
class Server:
    """One runtime in this process, and stubs to call it."""

    target: str
    runtime: Runtime
    # Asks for the end as a signal would; any number of times.
    stop: Callable[[], None]
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(
            self.target, [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        )
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.sessions = sessions_pb2_grpc.SessionsStub(self.channel)
        self.cache = cache_pb2_grpc.CacheStub(self.channel)

    def stats(self) -> cache_pb2.GetStatsResponse:
        return self.cache.GetStats(cache_pb2.GetStatsRequest())

    def idle(self) -> cache_pb2.GetStatsResponse:
        """Stats once nothing runs or waits."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            stats = self.stats()
            if not stats.running_requests and not stats.waiting_requests and not stats.active_blocks:
                return stats
            time.sleep(0.02)
        raise AssertionError(f"still busy: {stats}")


@contextmanager
def serving(loaded: LoadedModel, status: int = 0, **settings: Any) -> Iterator[Server]:
    """A runtime in a thread of its own; `status` is what it must exit with."""
    config = ServeConfig(metrics_port=None, num_blocks=BLOCKS, **settings)
    ready = threading.Event()
    made: dict[str, Any] = {}

    async def main() -> int:
        grpc_server = GrpcServer("127.0.0.1", 0)
        made.update(runtime=Runtime(config, loaded, grpc_server, None), target=grpc_server.target)
        made.update(stop=Stop(), loop=asyncio.get_running_loop())
        ready.set()
        return await made["runtime"].run(made["stop"])

    thread = threading.Thread(target=lambda: made.update(status=asyncio.run(main())), daemon=True)
    thread.start()
    assert ready.wait(60)
    server = Server(made["target"], made["runtime"], lambda: made["loop"].call_soon_threadsafe(made["stop"].asked.set))
    grpc.channel_ready_future(server.channel).result(30)
    yield server
    server.channel.close()
    if thread.is_alive():
        server.stop()
    thread.join(60)
    assert made["status"] == status


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> LoadedModel:
    return load_model(str(tiny_model), device="cpu")


@pytest.fixture(scope="module")
def server(loaded: LoadedModel) -> Iterator[Server]:
    with serving(loaded) as running:
        yield running


@dataclass
class Answer:
    started: inference_pb2.Started
    deltas: list[inference_pb2.Delta]
    finished: inference_pb2.Finished

    @property
    def ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


def ids_prompt(*ids: int) -> common_pb2.Prompt:
    return common_pb2.Prompt(token_ids=common_pb2.TokenIds(ids=ids))


def chat_prompt(*messages: tuple[str, str], **more: Any) -> common_pb2.Prompt:
    shaped = [common_pb2.Message(role=role, content=content) for role, content in messages]
    return common_pb2.Prompt(chat=common_pb2.Chat(messages=shaped, **more))


def prompt_of(length: int, seed: int) -> common_pb2.Prompt:
    return ids_prompt(*np.random.default_rng(seed).integers(6, 262, length).tolist())


def request(prompt: common_pb2.Prompt, max_tokens: int | None = 8, **more: Any) -> inference_pb2.GenerateRequest:
    sampling = more.pop("sampling", {})
    if max_tokens is not None:
        sampling = {"max_tokens": max_tokens, "ignore_eos": True, **sampling}
    return inference_pb2.GenerateRequest(prompt=prompt, sampling=inference_pb2.SamplingParams(**sampling), **more)


def generate(server: Server, prompt: common_pb2.Prompt, max_tokens: int | None = 8, **more: Any) -> Answer:
    messages = list(server.inference.Generate(request(prompt, max_tokens, **more), timeout=120))
    kinds = [message.WhichOneof("event") for message in messages]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert set(kinds[1:-1]) <= {"delta"}
    return Answer(messages[0].started, [m.delta for m in messages[1:-1]], messages[-1].finished)


def refused(call: Callable[[], Any]) -> grpc.RpcError:
    def to_the_end() -> None:
        result = call()
        if hasattr(result, "__next__"):
            list(result)

    with pytest.raises(grpc.RpcError) as caught:
        to_the_end()
    return caught.value


# Inference


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


def test_a_full_queue_refuses_with_a_retry_hint(loaded: LoadedModel) -> None:
    with serving(loaded, max_running=1, max_queue=1) as small:
        running = small.inference.Generate(request(prompt_of(20, seed=20), 3000))
        next(running)
        waiting = small.inference.Generate(request(prompt_of(20, seed=21), 4))
        while not small.stats().waiting_requests:
            time.sleep(0.01)
        error = refused(lambda: small.inference.Generate(request(prompt_of(20, seed=22), 4)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_queue" in error.details()
        hint = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
        assert int(hint) > 0
        running.cancel()
        assert list(waiting)[-1].HasField("finished")


def test_what_can_never_fit_is_refused_with_both_numbers(loaded: LoadedModel) -> None:
    with serving(loaded, block_size=1) as small:
        error = refused(lambda: generate(small, prompt_of(BLOCKS, seed=23), 20))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(BLOCKS + 19) in error.details()
        assert str(BLOCKS) in error.details()
        assert len(generate(small, prompt_of(BLOCKS - 19, seed=23), 20).ids) == 20


def test_a_lowered_context_holds(loaded: LoadedModel) -> None:
    from runtime.server import limit_context

    with serving(limit_context(loaded, 64)) as small:
        assert small.inference.GetModelInfo(inference_pb2.GetModelInfoRequest()).context_length == 64
        error = refused(lambda: generate(small, prompt_of(64, seed=24), 1))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_ends_the_runtime_instead_of_hanging_its_callers(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(loaded, status=1) as doomed:
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


# Sessions


def open_session(server: Server, **more: Any) -> str:
    return server.sessions.Open(sessions_pb2.OpenSessionRequest(**more)).session_id


def test_a_turn_sends_only_what_is_new_and_reuses_prompt_and_output(server: Server) -> None:
    session = open_session(server)
    first = generate(server, prompt_of(50, seed=30), 10, session_id=session)
    assert first.finished.session_tokens == 60
    second = generate(server, prompt_of(7, seed=31), 10, session_id=session, return_prompt_ids=True)
    assert second.started.usage.prompt_tokens == 67
    assert second.started.usage.cached_tokens == second.finished.usage.cached_tokens == 50 + 10 - 1
    assert second.finished.session_tokens == 77
    whole = [*prompt_of(50, seed=30).token_ids.ids, *first.ids, *prompt_of(7, seed=31).token_ids.ids]
    assert list(second.started.prompt_ids.ids) == whole
    assert generate(server, ids_prompt(*whole), 10).ids == second.ids


def test_a_chat_session_appends_and_never_renders_the_reply_again(server: Server) -> None:
    session = open_session(server)
    opening = chat_prompt(("system", "Be brief."), ("user", "Hello"))
    first = generate(server, opening, 12, session_id=session, return_prompt_ids=True)
    second = generate(server, chat_prompt(("user", "And?")), 12, session_id=session, return_prompt_ids=True)
    before = [*first.started.prompt_ids.ids, *first.ids]
    ids = list(second.started.prompt_ids.ids)
    assert ids[: len(before)] == before
    added = common_pb2.TokenIds(ids=ids[len(before) :])
    text = server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=added, keep_special_tokens=True)).text
    assert text == "<|end|>\n<|user|>And?<|end|>\n<|assistant|>"
    assert second.started.usage.cached_tokens == len(before) - 1


def test_a_fork_shares_what_was_and_goes_on_by_itself(server: Server) -> None:
    session = open_session(server)
    first = generate(server, prompt_of(50, seed=32), 10, session_id=session)
    child = server.sessions.Fork(sessions_pb2.ForkSessionRequest(session_id=session, new_session_id="child"))
    assert (child.session_id, child.tokens) == ("child", 60)
    ours = generate(server, ids_prompt(100), 5, session_id=session)
    theirs = generate(server, ids_prompt(101), 5, session_id="child")
    # The last generated token's KV was computed by whoever went on first.
    assert (ours.started.usage.cached_tokens, theirs.started.usage.cached_tokens) == (59, 60)
    alone = [*prompt_of(50, seed=32).token_ids.ids, *first.ids, 101]
    assert generate(server, ids_prompt(*alone), 5).ids == theirs.ids
    assert server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id="child")).tokens == 66


def test_one_turn_at_a_time_and_a_cancelled_one_leaves_no_trace(server: Server) -> None:
    session = open_session(server)
    generate(server, prompt_of(20, seed=33), 5, session_id=session)
    running = server.inference.Generate(request(ids_prompt(50), 3000, session_id=session))
    next(running)
    error = refused(lambda: generate(server, ids_prompt(51), 5, session_id=session))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "one at a time" in error.details()
    running.cancel()
    server.idle()
    assert generate(server, ids_prompt(52), 5, session_id=session).started.usage.prompt_tokens == 26


def test_a_refused_turn_leaves_the_session_usable(server: Server) -> None:
    session = open_session(server)
    generate(server, chat_prompt(("user", "Hello")), 5, session_id=session)
    for bad, code in (
        (request(ids_prompt(9), session_id=session), grpc.StatusCode.FAILED_PRECONDITION),
        (request(chat_prompt(("wizard", "x")), session_id=session), grpc.StatusCode.INVALID_ARGUMENT),
        (request(chat_prompt(("user", "x")), 5000, session_id=session), grpc.StatusCode.INVALID_ARGUMENT),
        (request(chat_prompt(("user", "x")), session_id=session, sampling={"n": 2}), grpc.StatusCode.INVALID_ARGUMENT),
        (
            request(chat_prompt(("user", "x")), session_id=session, namespace=common_pb2.Namespace(salt="s")),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ):
        assert refused(lambda bad=bad: server.inference.Generate(bad)).code() is code
    assert generate(server, chat_prompt(("user", "x")), 5, session_id=session).finished.session_tokens > 0


def test_a_session_keeps_the_tools_that_it_began_with(server: Server) -> None:
    tool = '{"type": "function", "function": {"name": "read", "parameters": {}}}'
    session = open_session(server)
    generate(server, chat_prompt(("user", "Hello"), tools=[tool]), 5, session_id=session)
    generate(server, chat_prompt(("user", "again"), tools=[tool]), 5, session_id=session)
    generate(server, chat_prompt(("user", "without")), 5, session_id=session)
    other = tool.replace("read", "write")
    error = refused(lambda: generate(server, chat_prompt(("user", "x"), tools=[other]), 5, session_id=session))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "prompt.chat.tools" in error.details()


def test_sessions_of_a_namespace_share_with_it_alone(server: Server) -> None:
    space = common_pb2.Namespace(salt="tenant")
    prompt = prompt_of(40, seed=34)
    generate(server, prompt)
    session = open_session(server, namespace=space)
    assert generate(server, prompt, session_id=session).started.usage.cached_tokens == 0
    assert generate(server, prompt, namespace=space).started.usage.cached_tokens == 39


def test_session_ids(server: Server) -> None:
    assert open_session(server, session_id="mine") == "mine"
    again = refused(lambda: open_session(server, session_id="mine"))
    assert again.code() is grpc.StatusCode.ALREADY_EXISTS
    assert refused(lambda: open_session(server, session_id="")).code() is grpc.StatusCode.INVALID_ARGUMENT
    close = sessions_pb2.CloseSessionRequest(session_id="mine")
    assert server.sessions.Close(close).closed
    assert not server.sessions.Close(close).closed
    gone = refused(lambda: generate(server, ids_prompt(9), session_id="mine"))
    assert gone.code() is grpc.StatusCode.NOT_FOUND
    assert "'mine'" in gone.details()
    assert refused(lambda: server.sessions.Fork(sessions_pb2.ForkSessionRequest(session_id="mine"))).code() is (
        grpc.StatusCode.NOT_FOUND
    )
    # Quoted whole, it would make the status too large for the client.
    long = refused(lambda: generate(server, ids_prompt(9), session_id="\U0001f334" * 20_000))
    assert long.code() is grpc.StatusCode.NOT_FOUND
    assert long.details().startswith("session_id '\U0001f334")


# Cache


def nodes(server: Server, **more: Any) -> list[cache_pb2.Node]:
    return list(server.cache.ListNodes(cache_pb2.ListNodesRequest(**more)))


def test_warm_computes_a_prompt_and_generates_nothing(server: Server) -> None:
    prompt = prompt_of(90, seed=40)
    warmed = server.cache.Warm(cache_pb2.WarmRequest(prompt=prompt)).usage
    assert (warmed.prompt_tokens, warmed.cached_tokens, warmed.computed_tokens, warmed.output_tokens) == (90, 0, 90, 0)
    again = server.cache.Warm(cache_pb2.WarmRequest(prompt=prompt)).usage
    assert (again.cached_tokens, again.computed_tokens) == (89, 1)
    assert generate(server, prompt).started.usage.cached_tokens == 89


def test_nodes_are_listed_parents_first_with_their_text(loaded: LoadedModel) -> None:
    with serving(loaded) as fresh:
        for text in ("shared head, left", "shared head, right"):
            fresh.cache.Warm(cache_pb2.WarmRequest(prompt=common_pb2.Prompt(text=text)))
        fresh.cache.Warm(
            cache_pb2.WarmRequest(prompt=common_pb2.Prompt(text="other"), namespace=common_pb2.Namespace(salt="t"))
        )
        found = nodes(fresh, head_tokens=32)
        assert sorted(node.head for node in found) == ["left", "other", "right", "shared head, "]
        seen = {0}
        for node in found:
            assert node.parent_id in seen
            seen.add(node.id)
        trunk = next(node for node in found if node.head == "shared head, ")
        assert (trunk.start, trunk.tokens, trunk.children) == (0, 13, 2)
        assert {node.start for node in found if node.parent_id == trunk.id} == {13}
        assert [node.head for node in nodes(fresh, namespace=common_pb2.Namespace(salt="t"))] == ["other"]
        assert nodes(fresh, namespace=common_pb2.Namespace(salt="t"))[0].namespace.salt == "t"
        assert {node.head for node in nodes(fresh, head_tokens=0)} == {""}
        assert refused(lambda: nodes(fresh, head_tokens=257)).code() is grpc.StatusCode.INVALID_ARGUMENT

        stats = fresh.stats()
        assert (stats.nodes, stats.namespaces) == (4, 2)
        assert stats.total_blocks == stats.free_blocks + stats.active_blocks + stats.cached_blocks == BLOCKS
        flushed = fresh.cache.Flush(cache_pb2.FlushRequest(namespace=common_pb2.Namespace(salt="t")))
        assert (flushed.flushed_tokens, flushed.freed_blocks) == (5, 1)
        assert len(nodes(fresh)) == 3
        fresh.cache.Flush(cache_pb2.FlushRequest())
        assert nodes(fresh) == []
        assert fresh.stats().free_blocks == BLOCKS


def test_stats_add_up(loaded: LoadedModel) -> None:
    with serving(loaded) as fresh:
        prompt = prompt_of(100, seed=41)
        generate(fresh, prompt, 10)
        generate(fresh, prompt, 10)
        open_session(fresh)
        stats = fresh.idle()
        assert (stats.requests_total, stats.prompt_tokens_total, stats.output_tokens_total) == (2, 200, 20)
        assert (stats.hit_tokens_total, stats.computed_tokens_total) == (99, 101)
        assert (stats.sessions, stats.block_size, stats.cached_tokens) == (1, 16, 109)
        assert stats.uptime_s > 0

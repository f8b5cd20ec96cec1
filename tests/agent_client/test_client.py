"""Both clients against a runtime that refuses on cue: results, typed errors, and when a call is tried again."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

import agent_client
from agent_client import AsyncRadixClient, Delta, Finished, RadixClient, RetryPolicy, Started
from tests.timing import eventually

from .toy_runtime import Refusal, ToyRuntime

QUICK = RetryPolicy(max_attempts=3, first_delay_s=0.001)


class Blocking:
    """The asyncio client behind the blocking client's face, so that every test runs against both."""

    def __init__(self, target: str, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        # What grpc makes outside of a running loop goes to the current one.
        asyncio.set_event_loop(self._loop)

        async def make() -> AsyncRadixClient:
            return AsyncRadixClient(target, **settings)

        self._client = self._loop.run_until_complete(make())

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._finish(getattr(self._client, name)(*args, **kwargs))

    def _finish(self, value: Any) -> Any:
        if asyncio.iscoroutine(value):
            value = self._loop.run_until_complete(value)
        elif hasattr(value, "__aiter__"):
            value = self._loop.run_until_complete(self._drain(value))
        if isinstance(value, agent_client.AsyncSession):
            return _BlockingSession(self, value)
        return value

    @staticmethod
    async def _drain(values: Any) -> list[Any]:
        return [value async for value in values]

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


class _BlockingSession:
    def __init__(self, client: Blocking, session: Any) -> None:
        self._client, self._session = client, session

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._session, name)
        return (lambda *a, **k: self._client._finish(value(*a, **k))) if callable(value) else value

    def __enter__(self) -> Any:
        return self._client._finish(self._session.__aenter__())

    def __exit__(self, *exc: object) -> None:
        self._client._finish(self._session.__aexit__(*exc))


Connect = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest, toy: ToyRuntime) -> Iterator[Connect]:
    opened = []

    def make(**settings: Any) -> Any:
        kind = RadixClient if request.param == "blocking" else Blocking
        opened.append(kind(toy.target, **{"retry": QUICK, **settings}))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def test_generate_collects_the_stream(connect: Connect) -> None:
    done = connect().generate("hello", max_tokens=3, return_prompt_ids=True)
    assert done.text == "fgh"
    assert done.token_ids == [102, 103, 104]
    assert done.finish_reason == "length"
    assert list(done.prompt_ids) == list(b"hello")
    assert (done.usage.prompt_tokens, done.usage.output_tokens, done.request_id) == (5, 3, "toy")
    assert done.timing.prefill_s == pytest.approx(0.005)
    assert done.as_message() == {"role": "assistant", "content": "fgh"}


def test_a_stream_starts_with_started_and_ends_with_finished(connect: Connect) -> None:
    events = list(connect().stream("hello", max_tokens=2))
    assert [type(event) for event in events] == [Started, Delta, Delta, Finished]
    assert [event.text for event in events[1:3]] == ["f", "g"]


def test_chat_sends_messages_and_tools(connect: Connect, toy: ToyRuntime) -> None:
    connect().chat([{"role": "user", "content": "hi"}], tools=[{"name": "f"}], max_tokens=1)
    chat = toy.seen[0].request.prompt.chat
    assert chat.messages[0].content == "hi"
    assert len(chat.tools) == 1


def test_the_small_calls(connect: Connect, toy: ToyRuntime) -> None:
    client = connect()
    assert list(client.tokenize("ab").token_ids) == [97, 98]
    assert client.tokenize([{"role": "user", "content": "x"}]).rendered == "<user>x<assistant>"
    assert client.detokenize([97, 98]) == "ab"
    assert client.model_info().eos_token_ids == (0,)
    assert client.stats().cached_blocks == 50
    assert client.warm("abc").computed_tokens == 3
    assert [(node.id, node.salt) for node in client.nodes()] == [(1, None), (2, "")]
    assert client.flush().tokens == 7


def test_flush_forgets_ones_own_namespace_unless_told_otherwise(connect: Connect, toy: ToyRuntime) -> None:
    connect(salt="me").flush()
    connect().flush()
    connect().flush(all_namespaces=True)
    assert [flush.HasField("namespace") for flush in toy.flushes] == [True, True, False]
    assert toy.flushes[0].namespace.salt == "me"
    assert not toy.flushes[1].namespace.HasField("salt")


def test_namespaces_of_the_client_and_of_a_call(connect: Connect, toy: ToyRuntime) -> None:
    client = connect(salt="mine")
    client.generate("x", max_tokens=1)
    client.generate("x", max_tokens=1, salt="other", adapter="a")
    spaces = [(seen.request.namespace.salt, seen.request.namespace.adapter) for seen in toy.seen]
    assert spaces == [("mine", ""), ("other", "a")]


def test_a_session_sends_only_what_is_new(connect: Connect, toy: ToyRuntime) -> None:
    with connect().session() as session:
        assert session.generate("abc", max_tokens=2).usage.prompt_tokens == 3
        assert session.tokens == 5
        with session.fork() as branch:
            assert branch.tokens == 5
            branch.generate("x", max_tokens=1)
        session.generate("de", max_tokens=1)
        assert session.tokens == 8
    assert [seen.request.prompt.text for seen in toy.seen] == ["abc", "x", "de"]
    assert toy.sessions == {}


def test_closing_twice_is_no_error(connect: Connect) -> None:
    session = connect().session("mine")
    assert session.close().closed
    assert not session.close().closed


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, agent_client.InvalidArgument),
        (grpc.StatusCode.NOT_FOUND, agent_client.NotFound),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, agent_client.ResourceExhausted),
        (grpc.StatusCode.FAILED_PRECONDITION, agent_client.FailedPrecondition),
        (grpc.StatusCode.DEADLINE_EXCEEDED, agent_client.DeadlineExceeded),
        (grpc.StatusCode.ABORTED, agent_client.Aborted),
        (grpc.StatusCode.UNIMPLEMENTED, agent_client.Unimplemented),
        (grpc.StatusCode.INTERNAL, agent_client.Internal),
        (grpc.StatusCode.CANCELLED, agent_client.Cancelled),
        (grpc.StatusCode.DATA_LOSS, agent_client.RadixloopError),
    ],
)
@pytest.mark.parametrize("method", ["Generate", "Tokenize"])
def test_errors_are_typed_and_not_tried_again(
    connect: Connect, toy: ToyRuntime, method: str, code: grpc.StatusCode, kind: type[agent_client.RadixloopError]
) -> None:
    toy.refusals[method] = [Refusal(code, "max_tokens is 0: from 1 up")]
    client = connect()
    with pytest.raises(kind, match="max_tokens is 0") as caught:
        client.generate("x", max_tokens=1) if method == "Generate" else client.tokenize("x")
    assert caught.value.code == code.name
    assert toy.calls(method) == 1


def test_an_unavailable_runtime_is_tried_again(connect: Connect, toy: ToyRuntime) -> None:
    toy.refusals = {name: [Refusal(grpc.StatusCode.UNAVAILABLE)] * 2 for name in ("Generate", "GetStats")}
    client = connect()
    assert client.generate("x", max_tokens=1).text
    assert client.stats().total_blocks == 100
    assert (toy.calls("Generate"), toy.calls("GetStats")) == (3, 3)


def test_it_gives_up_after_the_last_attempt(connect: Connect, toy: ToyRuntime) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.UNAVAILABLE)] * 9
    with pytest.raises(agent_client.Unavailable):
        connect().generate("x", max_tokens=1)
    assert toy.calls("Generate") == 3


@pytest.mark.parametrize("method", ["Generate", "Open"])
def test_a_full_queue_is_tried_again_when_the_runtime_says_when(connect: Connect, toy: ToyRuntime, method: str) -> None:
    toy.refusals[method] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms="30")] * 2
    client = connect()
    began = time.monotonic()
    client.generate("x", max_tokens=1) if method == "Generate" else client.session()
    assert time.monotonic() - began >= 0.06
    assert toy.calls(method) == 3


@pytest.mark.parametrize("pushback", [None, "-1", "soon"])
def test_a_request_that_never_fits_is_not_tried_again(connect: Connect, toy: ToyRuntime, pushback: str | None) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms=pushback)]
    with pytest.raises(agent_client.ResourceExhausted) as caught:
        connect().generate("x", max_tokens=1)
    assert caught.value.retry_after_s is None
    assert toy.calls("Generate") == 1


def test_a_stream_that_began_is_never_started_over(connect: Connect, toy: ToyRuntime) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.UNAVAILABLE, after_messages=1)]
    with pytest.raises(agent_client.Unavailable):
        connect().generate("x", max_tokens=2)
    assert toy.calls("Generate") == 1


@pytest.mark.parametrize("method", ["Generate", "Open", "Fork"])
def test_what_would_be_done_twice_is_not_tried_again(connect: Connect, toy: ToyRuntime, method: str) -> None:
    client = connect()
    session = client.session("kept")
    toy.counts.clear()
    toy.refusals[method] = [Refusal(grpc.StatusCode.UNAVAILABLE)]
    calls = {"Generate": lambda: session.generate("x", max_tokens=1), "Open": client.session, "Fork": session.fork}
    with pytest.raises(agent_client.Unavailable):
        calls[method]()
    assert toy.calls(method) == 1


def test_a_turn_that_was_refused_at_the_queue_is_tried_again(connect: Connect, toy: ToyRuntime) -> None:
    session = connect().session()
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms="1")]
    session.generate("abc", max_tokens=2)
    assert (toy.calls("Generate"), session.tokens) == (2, 5)


def test_the_deadline_covers_all_attempts(connect: Connect, toy: ToyRuntime) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms="60000")]
    with pytest.raises(agent_client.ResourceExhausted) as caught:
        connect(timeout_s=5).generate("x", max_tokens=1)
    assert caught.value.retry_after_s == 60


def test_a_slow_call_ends_at_its_deadline(connect: Connect, toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.05
    with pytest.raises(agent_client.DeadlineExceeded):
        connect().generate("x", max_tokens=1000, timeout_s=0.3)


def test_nobody_there(connect: Connect, toy: ToyRuntime) -> None:
    toy.stop()
    client = connect()
    with pytest.raises(agent_client.Unavailable):
        client.stats()
    with pytest.raises(agent_client.Unavailable, match=r"does not serve after 0\.3 s: UNAVAILABLE"):
        client.wait_ready(0.3)


def test_a_runtime_that_does_not_serve_yet_is_not_ready(toy: ToyRuntime, connect: Connect) -> None:
    toy.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    with pytest.raises(agent_client.Unavailable, match="NOT_SERVING"):
        connect().wait_ready(0.0)
    toy.health.set("", health_pb2.HealthCheckResponse.SERVING)
    connect().wait_ready(0.0)


def test_leaving_the_block_cancels_the_stream(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.01
    with RadixClient(toy.target) as client, client.stream("x", max_tokens=100_000) as stream:
        next(stream)
    assert eventually(lambda: toy.seen[0].cancelled)


def test_a_cancelled_stream_raises_cancelled_and_is_not_tried_again(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.01
    with RadixClient(toy.target) as client:
        stream = client.stream("x", max_tokens=100_000)
        next(stream)
        stream.cancel()
        with pytest.raises(agent_client.Cancelled):
            stream.result()
    assert toy.calls("Generate") == 1


async def test_cancel_ends_an_asyncio_stream_without_cancelling_the_task(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.01
    async with AsyncRadixClient(toy.target) as client:
        stream = client.stream("x", max_tokens=100_000)
        await anext(stream)
        stream.cancel()
        with pytest.raises(agent_client.Cancelled):
            await stream.result()
    assert toy.calls("Generate") == 1


async def test_cancelling_the_task_stops_the_work(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.01
    async with AsyncRadixClient(toy.target) as client:
        task = asyncio.create_task(client.generate("x", max_tokens=100_000))
        while not toy.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not toy.seen[0].cancelled:
            await asyncio.sleep(0.01)


def test_an_error_inside_a_session_is_not_hidden_by_a_failing_close(toy: ToyRuntime) -> None:
    toy.refusals["Close"] = [Refusal(grpc.StatusCode.INTERNAL)] * 2
    client = RadixClient(toy.target, retry=QUICK)
    with pytest.raises(ZeroDivisionError), client.session():
        _ = 1 // 0
    with pytest.raises(agent_client.Internal), client.session():
        pass
    client.close()


def test_the_target_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, toy: ToyRuntime) -> None:
    monkeypatch.setenv("RADIXLOOP_TARGET", toy.target)
    with RadixClient() as client:
        assert client.model_info().model == "toy"


def test_every_public_name_resolves() -> None:
    for name in agent_client.__all__:
        assert getattr(agent_client, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        agent_client.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (RadixClient, AsyncRadixClient),
        (agent_client.Session, agent_client.AsyncSession),
        (agent_client.GenerationStream, agent_client.AsyncGenerationStream),
    ],
    ids=lambda kind: kind.__name__,
)
def test_both_clients_have_the_same_methods(blocking: type, awaited: type) -> None:
    def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
        named = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(method).parameters.values()) for name, method in named if name[0] != "_"}

    assert methods(blocking) == methods(awaited)

"""A runtime in this process behind its real gRPC services, and short words to call it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from runtime.models.loaded_model import LoadedModel
from runtime.server import Runtime, listen

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
    credentials: grpc.ChannelCredentials | None = None
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        if self.credentials is None:
            self.channel = grpc.insecure_channel(self.target, options)
        else:
            self.channel = grpc.secure_channel(self.target, self.credentials, options)
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
def serving(
    loaded: LoadedModel, status: int = 0, credentials: grpc.ChannelCredentials | None = None, **settings: Any
) -> Iterator[Server]:
    """A runtime in a thread of its own; `status` is what it must exit with, `credentials` are for a port with TLS."""
    config = ServeConfig(port=0, metrics_port=None, num_blocks=BLOCKS, **settings)
    ready = threading.Event()
    made: dict[str, Any] = {}

    async def main() -> int:
        grpc_server = listen(config)
        made.update(runtime=Runtime(config, loaded, grpc_server, None), target=grpc_server.target)
        made.update(stop=Stop(), loop=asyncio.get_running_loop())
        ready.set()
        return await made["runtime"].run(made["stop"])

    thread = threading.Thread(target=lambda: made.update(status=asyncio.run(main())), daemon=True)
    thread.start()
    assert ready.wait(60)
    server = Server(
        made["target"],
        made["runtime"],
        lambda: made["loop"].call_soon_threadsafe(made["stop"].asked.set),
        credentials,
    )
    grpc.channel_ready_future(server.channel).result(30)
    yield server
    server.channel.close()
    if thread.is_alive():
        server.stop()
    thread.join(60)
    assert made["status"] == status


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


def open_session(server: Server, **more: Any) -> str:
    return server.sessions.Open(sessions_pb2.OpenSessionRequest(**more)).session_id

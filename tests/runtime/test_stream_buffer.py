"""The buffer between engine and stream: order, joining, and a writer that never waits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runtime.events import DeltaEvent, Event, FinishedEvent, FinishReason, StartedEvent, Timing, Usage
from runtime.sampling.sampler import SampledToken
from runtime.services.stream_buffer import StreamBuffer
from runtime.services.wakeups import WakeUps

USAGE = Usage(1, 0, 0, 1)
DONE = FinishedEvent(USAGE, Timing(0, 0, 0, 0, 0, 0, 0, 0), ((1,),))


def delta(index: int, token: int, **more: object) -> DeltaEvent:
    return DeltaEvent(index, f"<{token}>", (token,), (SampledToken(token, -1.0, ()),), **more)  # type: ignore[arg-type]


def made() -> tuple[StreamBuffer, WakeUps]:
    wakeups = WakeUps(asyncio.get_running_loop())
    return StreamBuffer(wakeups), wakeups


async def test_deltas_that_wait_together_become_one_a_choice() -> None:
    buffer, wakeups = made()
    buffer.push([StartedEvent(USAGE, None), delta(0, 1), delta(1, 2)])
    buffer.push([delta(0, 3), delta(1, 4, finish_reason=FinishReason.STOP, stopped_by="x")])
    buffer.push([delta(0, 5, finish_reason=FinishReason.LENGTH), DONE])
    wakeups.flush()
    started, first, second, finished = await buffer.take()
    assert isinstance(started, StartedEvent)
    assert finished is DONE
    assert isinstance(first, DeltaEvent)
    assert isinstance(second, DeltaEvent)
    assert (first.index, first.text, first.token_ids) == (0, "<1><3><5>", (1, 3, 5))
    assert [step.token_id for step in first.logprobs] == [1, 3, 5]
    assert first.finish_reason is FinishReason.LENGTH
    assert (second.text, second.token_ids, second.stopped_by) == ("<2><4>", (2, 4), "x")
    assert second.finish_reason is FinishReason.STOP


async def test_what_was_taken_is_not_joined_any_more() -> None:
    buffer, wakeups = made()
    buffer.push([delta(0, 1)])
    wakeups.flush()
    (first,) = await buffer.take()
    buffer.push([delta(0, 2)])
    wakeups.flush()
    (second,) = await buffer.take()
    assert isinstance(first, DeltaEvent)
    assert isinstance(second, DeltaEvent)
    assert (first.token_ids, second.token_ids) == ((1,), (2,))


async def test_take_waits_for_something() -> None:
    buffer, wakeups = made()
    waiting = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.push([DONE])
    await asyncio.sleep(0)
    assert not waiting.done(), "nobody is woken in the middle of a step"
    wakeups.flush()
    assert await waiting == [DONE]


async def test_nothing_is_lost_or_reordered_between_threads() -> None:
    buffer, wakeups = made()

    def write() -> None:
        for token in range(20_000):
            buffer.push([delta(0, token)])
            if token % 3 == 0:
                wakeups.flush()
        buffer.push([DONE])
        wakeups.flush()

    writer = threading.Thread(target=write)
    writer.start()
    got: list[int] = []
    last: Event | None = None
    while last is not DONE:
        for last in await buffer.take():
            if isinstance(last, DeltaEvent):
                got.extend(last.token_ids)
    writer.join()
    assert got == list(range(20_000))


def test_pushing_to_a_loop_that_is_gone_is_harmless() -> None:
    loop = asyncio.new_event_loop()
    wakeups = WakeUps(loop)
    loop.close()
    StreamBuffer(wakeups).push([DONE])
    wakeups.flush()


async def test_a_stalled_reader_costs_one_delta_a_choice() -> None:
    buffer, wakeups = made()
    for token in range(5_000):
        buffer.push([delta(token % 2, token)])
    wakeups.flush()
    events = await buffer.take()
    assert len(events) == 2
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(buffer.take(), 0.01)


async def test_one_flush_wakes_every_reader() -> None:
    wakeups = WakeUps(asyncio.get_running_loop())
    buffers = [StreamBuffer(wakeups) for _ in range(8)]
    for token, buffer in enumerate(buffers):
        buffer.push([delta(0, token)])
    wakeups.flush()
    taken = await asyncio.gather(*(buffer.take() for buffer in buffers))
    assert [events[0].token_ids for events in taken] == [(token,) for token in range(8)]
    wakeups.flush()
    waiting = [asyncio.ensure_future(buffer.take()) for buffer in buffers]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting), "what was taken wakes nobody again"
    for task in waiting:
        task.cancel()

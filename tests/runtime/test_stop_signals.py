"""What a first and a second signal do."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from runtime import stop_signals
from runtime.stop_signals import StopSignals


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What happened at an immediate exit, in order."""
    seen: list[object] = []
    monkeypatch.setattr(stop_signals.os, "_exit", seen.append)
    return seen


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_drains_and_the_second_exits_at_once(ends: list[object], number: int) -> None:
    stop = StopSignals(asyncio.get_running_loop(), before_exit=lambda: ends.append("cleaned"))
    stop.may_drain = True
    os.kill(os.getpid(), number)
    await asyncio.wait_for(stop.wait(), 5)
    assert ends == []
    os.kill(os.getpid(), signal.SIGTERM)
    await settle()
    assert ends == ["cleaned", 128 + signal.SIGTERM]


async def test_before_serving_the_first_exits_at_once(ends: list[object]) -> None:
    StopSignals(asyncio.get_running_loop(), before_exit=None)
    os.kill(os.getpid(), signal.SIGINT)
    await settle()
    assert ends == [128 + signal.SIGINT]

"""Runs one job on an engine and waits for its end: for checks in a process of their own."""

from __future__ import annotations

from queue import SimpleQueue

from runtime.engine import Engine
from runtime.events import Event, FailedEvent, FinishedEvent
from runtime.request import GenerateJob


def run_job(engine: Engine, job: GenerateJob) -> FinishedEvent:
    """How the job ended. Raises what `Engine.submit` raises, and what the job failed with."""
    events: SimpleQueue[list[Event]] = SimpleQueue()
    engine.submit(job, events.put)
    while True:
        for event in events.get():
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, FinishedEvent):
                return event

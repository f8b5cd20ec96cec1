"""What the engine is asked for and nobody waits for."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

from radix import LeaseRefused
from runtime.errors import ShuttingDown, TooMany

log = logging.getLogger(__name__)
# Counted, and part of the day: a cap that was reached, an engine that stops.
_EXPECTED = (LeaseRefused, TooMany, ShuttingDown)


def log_surprise(future: Future[Any], what: str) -> None:
    """Log it when the call comes to an end that nobody foresaw; `what` names it in a sentence."""

    def ended(done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, _EXPECTED):
            log.warning("%s: %r", what, error)

    future.add_done_callback(ended)

"""When a call may be tried again: only where that cannot make the runtime do something twice."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from .errors import RadixloopError, ResourceExhausted, Unavailable


class Safety(enum.Enum):
    """What happens if the runtime sees the same call twice."""

    # The answer is the same, or the first try left nothing behind.
    REPEATABLE = "repeatable"
    # It would be done twice: repeat only what the runtime says it refused.
    ONCE = "once"


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to wait. `max_attempts` counts the first; 1 turns retries off."""

    max_attempts: int = 5
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0

    def delay_s(self, error: RadixloopError, attempt: int, safety: Safety) -> float | None:
        """Seconds to wait before the next attempt after `attempt` (from 1) failed; None: give up."""
        if attempt >= self.max_attempts:
            return None
        if isinstance(error, ResourceExhausted):
            return error.retry_after_s
        if not isinstance(error, Unavailable) or safety is Safety.ONCE:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s
        delay = min(self.first_delay_s * 2.0 ** (attempt - 1), self.max_delay_s)
        # Spread out, so that clients that failed together do not come back together.
        return delay * random.uniform(0.8, 1.2)

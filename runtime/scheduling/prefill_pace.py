"""How long prefill takes a token, as lately measured: what a miss costs in seconds."""

from __future__ import annotations

from runtime.events import RequestRecord
from runtime.tiers.pace import Average

# A request counts half as much after so many tokens of others' prefill: some minutes on a CPU, seconds on a GPU.
_HALF_LIFE_TOKENS = 20_000


class PrefillPace:
    """A moving average over requests that finished, weighted by the tokens that they computed."""

    def __init__(self) -> None:
        self._average = Average(_HALF_LIFE_TOKENS)

    def record(self, record: RequestRecord) -> None:
        """Take a request's measurements; called on the engine thread."""
        tokens = record.usage.computed_tokens
        if record.outcome == "finished" and tokens > 0:
            self._average.add(record.timing.prefill_s, tokens)

    @property
    def seconds_a_token(self) -> float | None:
        """None before the first measurement."""
        return self._average.each

"""How requests went: times and lengths, as histograms."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from runtime.events import RequestRecord
from runtime.monitoring.histograms import Histogram

# Cached prompts answer in milliseconds, a first long one on a CPU in minutes.
LATENCY_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 320.0,
)  # fmt: skip
TOKEN_GAP_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5, 5.0,
)  # fmt: skip
TOKENS = tuple(float(2**power) for power in range(21))


class RequestHistograms:
    """What is known of a request when it ends."""

    def __init__(self) -> None:
        self._ttft = Histogram(
            "radixloop_time_to_first_token_seconds",
            "From arrival to the first token. Means what vllm:time_to_first_token_seconds does.",
            LATENCY_S,
        )
        self._queue = Histogram(
            "radixloop_request_queue_seconds",
            "From arrival to first admission. Means what vllm:request_queue_time_seconds does.",
            LATENCY_S,
        )
        self._prefill = Histogram(
            "radixloop_request_prefill_seconds",
            "From first admission to the end of the prompt's last forward pass. "
            "Means what vllm:request_prefill_time_seconds does.",
            LATENCY_S,
        )
        self._itl = Histogram(
            "radixloop_inter_token_latency_seconds",
            "Between two tokens of a choice. Means what vllm:inter_token_latency_seconds does.",
            TOKEN_GAP_S,
        )
        self._total = Histogram(
            "radixloop_request_seconds",
            "From arrival to the end, of requests that finished. Means what vllm:e2e_request_latency_seconds does.",
            LATENCY_S,
        )
        self._prompt = Histogram(
            "radixloop_request_prompt_tokens",
            "Length of the prompt. Means what vllm:request_prompt_tokens does.",
            TOKENS,
        )
        self._computed = Histogram(
            "radixloop_request_computed_tokens",
            "Prompt tokens that were computed, not cached. Means what vllm:request_prefill_kv_computed_tokens does.",
            TOKENS,
        )
        self._output = Histogram(
            "radixloop_request_generation_tokens",
            "Tokens generated, over all choices. Means what vllm:request_generation_tokens does.",
            TOKENS,
        )

    def record(self, record: RequestRecord) -> None:
        """Count a request that ended. A stage that it never got through is not counted."""
        usage, timing = record.usage, record.timing
        finished = record.outcome == "finished"
        self._itl.observe(record.itls)
        if finished or usage.output_tokens:
            self._queue.observe([timing.queue_s])
            self._prefill.observe([timing.prefill_s])
            self._prompt.observe([usage.prompt_tokens])
            self._computed.observe([usage.computed_tokens])
        if usage.output_tokens:
            self._ttft.observe([timing.ttft_s])
        if finished:
            self._total.observe([timing.total_s])
            self._output.observe([usage.output_tokens])

    def families(self) -> Iterator[Metric]:
        """All of them, for a scrape."""
        for histogram in (
            self._ttft,
            self._queue,
            self._prefill,
            self._itl,
            self._total,
            self._prompt,
            self._computed,
            self._output,
        ):
            yield histogram.family()

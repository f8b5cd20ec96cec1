"""Metrics of the texts that are remembered with their token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.histories.encoder import HistoryBooks


class HistoryMetrics(Collector):
    """`books`: the counts, from any thread; None where nothing is remembered."""

    def __init__(self, books: Callable[[], HistoryBooks | None]) -> None:
        self._books = books

    def collect(self) -> Iterator[Metric]:
        books = self._books()
        if books is None:
            return
        memory = books.memory
        yield GaugeMetricFamily("radixloop_history_bytes", "Text and token ids that are remembered.", memory.bytes)
        yield CounterMetricFamily(
            "radixloop_history_forgotten_bytes",
            "Forgotten to make room (--history-memory).",
            memory.forgotten_bytes,
        )
        tokens = CounterMetricFamily(
            "radixloop_history_tokens", "Prompt tokens of texts and chats, by where they came from.", labels=["source"]
        )
        tokens.add_metric(["remembered"], books.remembered_tokens)
        tokens.add_metric(["tokenised"], books.tokenised_tokens)
        yield tokens
        replies = CounterMetricFamily(
            "radixloop_history_replies", "Replies, by whether their ids stand for their text.", labels=["outcome"]
        )
        replies.add_metric(["kept"], books.replies_kept)
        replies.add_metric(["not_kept"], books.replies_not_kept)
        yield replies

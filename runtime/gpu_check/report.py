"""The findings as text."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.gpu_check.correctness import BackendReport, LogitReport
from runtime.gpu_check.speed import DecodeReport, FirstTokenReport, PrefillReport, SharedReport


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the last one free."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join([f"\n{title}", *(line.rstrip() for line in lines)])


def backends(reports: Sequence[BackendReport], chosen: str) -> str:
    rows = [
        [
            f"{report.name}{' *' if report.name == chosen else ''}",
            _verdict(report.passed) if report.trials else "-",
            str(report.trials),
            "-" if report.error is None else f"{report.error:.1e}",
            _ms(report.decode_ms),
            _ms(report.chunk_ms),
            "; ".join(report.notes),
        ]
        for report in reports
    ]
    head = ["back end", "", "trials", "error", "decode ms", "chunk ms", "notes"]
    return table("Attention against the reference, and one layer of it alone (* is what auto takes)", head, rows)


def logits(reports: Sequence[LogitReport]) -> str:
    rows = [
        [report.what, _verdict(report.passed), str(report.rows), f"{report.error:.1e}", str(report.flips)]
        for report in reports
    ]
    return table("Logits", ["", "", "rows", "relative error", "other likeliest token"], rows)


def prefill(reports: Sequence[PrefillReport]) -> str:
    rows = [[str(r.tokens), f"{r.tokens_per_s:,.0f}", f"{r.share:.0%}"] for r in reports]
    return table("Prefill", ["prompt", "tokens/s", "of the products' limit"], rows)


def decode(reports: Sequence[DecodeReport]) -> str:
    rows = [
        [str(r.context), str(r.batch), _ms(r.step_ms), _ms(r.ordinary_ms), "-" if r.share is None else f"{r.share:.0%}"]
        for r in reports
    ]
    head = ["context", "batch", "step ms", "without graphs", "of the memory's limit"]
    return table("Decode (- does not fit, or out of time)", head, rows)


def shared(reports: Sequence[SharedReport]) -> str:
    rows = [[str(r.context), str(r.batch), _ms(r.step_ms), _ms(r.shared_ms)] for r in reports]
    return table("Decode of branches of one trunk", ["context", "batch", "step ms", "trunk read once"], rows)


def first_tokens(reports: Sequence[FirstTokenReport]) -> str:
    rows = [[str(r.tokens), f"{1000 * r.cold_s:.1f}", f"{1000 * r.warm_s:.1f}", str(r.cached_tokens)] for r in reports]
    return table("Time to the first token", ["prompt", "cold ms", "warm ms", "of it cached"], rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _verdict(passed: bool) -> str:
    return "ok" if passed else "WRONG"

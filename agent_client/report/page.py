"""The page: figures of the report, pictures of the runs, prices, through the template beside this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..explaining import CAUSE_WORDS
from ..replay.tables import ROWS
from ..words import count, counted, printable, seconds, share
from .charts import hit_rate_by_turn, itl_distribution, short, tokens_by_turn, ttft_by_length
from .material import Material
from .prices import Prices, cost
from .timeline import timeline
from .tree_rows import cells

# No text of a prompt, a name or a message gets more room than this.
_LONGEST_TEXT = 400
TURNS_LISTED = 200
_PARTINGS_OPEN = 5


def render(report: dict[str, Any], materials: Sequence[Material], prices: Prices, made_at: datetime) -> str:
    """One HTML document without a request to anywhere. `materials` are those of the report's runs, in their order."""
    runs = report["runs"]
    # With --compare the run without the cache comes first, and the other one is what the page is about.
    at = max((i for i, run in enumerate(runs) if run["calls"]), default=len(runs) - 1)
    run, material = runs[at], materials[at]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            run=run,
            base=runs[0] if report["ratios"] else None,
            made_at=made_at,
            hits=hit_rate_by_turn(run["turns"]),
            tokens=tokens_by_turn(run["turns"]),
            ttft=ttft_by_length([material.run for material in materials]),
            itl=itl_distribution(material.run),
            timeline=timeline(material.run),
            tree=_tree(material),
            causes=_causes(run),
            partings=material.partings,
            texts_missing=material.texts_missing,
            prices=prices,
            cost=cost(run, prices),
            rows=ROWS,
            partings_open=_PARTINGS_OPEN,
            turns_listed=TURNS_LISTED,
        )
    )


def _tree(material: Material) -> dict[str, Any]:
    placed = cells(material.tree)
    longest = max((node.end for top in material.tree for node in top.walk()), default=0)
    nodes = [node for top in material.tree for node in top.walk()]
    return {
        "cells": placed,
        "rows": max((cell.row + cell.rows for cell in placed), default=0),
        "longest": longest,
        "nodes": len(nodes),
        "branches": sum(not node.children for node in nodes),
        "tokens": sum(node.size for node in nodes),
        "computed": sum(node.computed for node in nodes),
    }


def _causes(run: dict[str, Any]) -> list[dict[str, Any]]:
    missed = run["missed_tokens_by_cause"] or {}
    highest = max(missed.values(), default=0)
    return [
        {
            "name": cause.replace("_", " "),
            "why": CAUSE_WORDS[cause],
            "tokens": tokens,
            "share": tokens / run["computed_tokens"] if run["computed_tokens"] else None,
            "width": 100 * tokens / highest if highest else 0,
        }
        for cause, tokens in sorted(missed.items(), key=lambda item: -item[1])
    ]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("agent_client.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, counted=counted, seconds=seconds, share=share, short=short, money=_money)
    return environment


def _shown(value: Any) -> Any:
    """Text of others as one printable line of bounded length; what the template itself made stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) > _LONGEST_TEXT:
        value = value[: _LONGEST_TEXT - 1] + "…"
    return printable(value)


def _money(amount: float) -> str:
    """Small sums keep two digits that say something."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.{max(2, 1 - _magnitude(amount))}f}"


def _magnitude(amount: float) -> int:
    """The power of ten of the first digit."""
    return int(f"{amount:e}".partition("e")[2])

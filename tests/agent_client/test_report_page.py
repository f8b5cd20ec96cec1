"""The page: every part, the report's own figures, no request, nothing of a prompt as markup, a bounded size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from typing import Any

import pytest

from agent_client.errors import Unavailable
from agent_client.replay.records import Run
from agent_client.replay.tables import ROWS
from agent_client.report import gather, read_prices, render
from agent_client.verdicts import Span, Verdict
from agent_client.words import count, seconds, share

from .report_runs import call, loops, report_of

MADE_AT = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
VOID = {"meta", "line", "circle", "rect", "br"}


class Page(HTMLParser):
    """Tags, attributes and texts, and whether every tag was closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style" and data.strip():
            self.texts.append(data.strip())
            if self._open[-1] in ("h1", "h2"):
                self.headings.append(data.strip())

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


async def page_of(*runs: Run, text: str = "some text", **more: Any) -> Page:
    async def decode(token_ids: Sequence[int]) -> str:
        return text

    materials = [await gather(run, decode) for run in runs]
    return Page(render(report_of(*runs, **more), materials, read_prices(None), MADE_AT))


async def test_the_page_has_every_part() -> None:
    page = await page_of(loops())
    assert page.headings == [
        "loops.jsonl",
        "Hit rate by turn",
        "Tokens computed and saved",
        "Time to first token",
        "Time between tokens",
        "The loops over time",
        "The prefix tree",
        "Why tokens were computed",
        "What it would cost",
        "All figures",
    ]
    kinds = {value for _, name, value in page.attributes if name == "class"}
    assert {"cached", "computed", "ideal", "decode", "pause", "lanes", "tree", "turn"} <= kinds
    assert "an example to show the sum" in page.text


async def test_it_says_what_the_report_says() -> None:
    run = loops()
    report = report_of(run)
    page = await page_of(run)
    (told,) = report["runs"]
    for row in ROWS:
        at = page.texts.index(row.label.strip(), page.texts.index("All figures"))
        assert page.texts[at + 1] == row.show(told)
    for turn in told["turns"]:
        cells = [count(turn[name]) for name in ("turn", "calls", "input_tokens", "cached_tokens", "computed_tokens")]
        cells += [share(turn["hit_rate"]), share(turn["ideal_hit_rate"]), seconds(turn["ttft_p50_s"])]
        assert "\n".join(cells) in page.text
    for cause, tokens in told["missed_tokens_by_cause"].items():
        assert f"{cause.replace('_', ' ')}\n{count(tokens)} tokens" in page.text
    assert "The chat template leaves reasoning out." in page.text
    assert f"{count(told['cached_tokens'])} tokens found" in page.text
    assert f"{count(told['computed_tokens'])} tokens were computed for them" in page.text


async def test_what_an_endless_cache_would_have_found_more_stands_apart() -> None:
    run = Run("cached", [call("a", 1, range(100)), call("b", 1, range(100), 20, started_s=1.0)], wall_s=2.0)
    page = await page_of(run)
    assert "79 more that an endless cache would have found" in page.text
    assert "101 that no cache could have had" in page.text


async def test_two_runs_stand_side_by_side_and_the_page_is_about_the_cached_one() -> None:
    cold = loops()
    cold = Run("no_cache", [replace(r, usage=replace(r.usage, cached_tokens=0), verdict=None) for r in cold.records])
    page = await page_of(cold, loops())
    assert share(report_of(loops())["runs"][0]["hit_rate"]) in page.text
    assert page.texts[page.texts.index("no cache") + 1 :][:2] == ["cached", "ratio"]
    assert "without the cache" in page.text
    interrupted = Run("cached", interrupted=True)
    page = await page_of(cold, interrupted)
    assert "0.00%" in page.text


@pytest.mark.parametrize("name", ["cached", "no_cache"])
async def test_a_run_in_which_nothing_finished_has_a_page(name: str) -> None:
    failed = call("a", 1, [], ended_s=None, ttft_s=None, itls_s=[], error="UNAVAILABLE: gone", verdict=None)
    for records in ([], [failed]):
        page = await page_of(Run(name, list(records), wall_s=0.0))
        assert "Nothing to draw" in page.text
        assert "The runtime gave no verdicts" in page.text
    assert "a, turn 1: UNAVAILABLE: gone" in page.text


async def test_it_asks_nobody_for_anything() -> None:
    page = await page_of(loops())
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert ("meta", "content", policy) in page.attributes
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(page.tags)
    assert not {"src", "href", "srcset", "action", "onload"} & {name for _, name, _ in page.attributes}
    assert not re.search(r"https?:|url\(|@import", page.html)


HOSTILE = (
    '<script>alert(1)</script><img src=x onerror=alert(1)>"\' onmouseover="x {{ 7 * 7 }} &lt; </style></title>'
    "\x00\x1b[31m\r\u202egnp.exe\u2028\ud800 "
)


async def test_no_text_of_others_becomes_markup() -> None:
    run = loops(sessions=2, turns=2)
    for record in run.records:
        record.session += HOSTILE
        record.verdict = Verdict((Span(0, len(record.prompt_ids), "diverged", beside=(record.prompt_ids[:3],)),))
    run.records.append(call(HOSTILE, 1, [], ended_s=None, error=HOSTILE, verdict=None))
    named = dict.fromkeys(("trace", "model", "target", "trace_format"), HOSTILE)
    page = await page_of(run, text=HOSTILE, **named, notes=[HOSTILE], options={"salt": HOSTILE, "live_replies": False})
    plain = await page_of(loops(sessions=2, turns=2))
    assert set(page.tags) <= {*plain.tags, "h3", "mark", "details", "summary"}
    assert {name for _, name, _ in page.attributes} == {name for _, name, _ in plain.attributes}
    # Everywhere as text, in one line, with nothing that steers a terminal, an editor or the direction of reading.
    assert page.text.count("<script>alert(1)</script>") > 10
    assert "{{ 7 * 7 }}" in page.text
    assert "49" not in page.headings[0]
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\u2028\ud800]", page.html)
    page.html.encode()


@pytest.mark.slow
async def test_texts_of_megabytes_and_thousands_of_calls_stay_a_small_page() -> None:
    run = loops(sessions=250, turns=40, size=4)
    huge = "word " * 400_000
    for record in run.records[:40]:
        record.session = huge
    run.records.append(call("f", 1, [], ended_s=None, error=huge, verdict=None))
    page = await page_of(run, text=huge, trace=huge, notes=[huge] * 50)
    assert len(page.html.encode()) < 1_500_000
    assert "221 more sessions and 8,801 more calls in all are not drawn" in page.text
    assert "210 more, " in page.text


async def test_a_runtime_that_is_gone_leaves_a_page_without_texts() -> None:
    async def decode(token_ids: Sequence[int]) -> str:
        raise Unavailable("nobody <there>")

    run = loops()
    page = Page(render(report_of(run), [await gather(run, decode)], read_prices(None), MADE_AT))
    assert "the runtime did not decode them: UNAVAILABLE: nobody <there>" in page.text
    assert "The prefix tree" in page.headings

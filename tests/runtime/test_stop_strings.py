"""Stop strings against a search over the whole text, cut into pieces at random."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.sampling.stop_strings import StopStringMatcher


def oracle(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Text before the first stop string to be complete; of several, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def oracle_held(text: str, stops: tuple[str, ...]) -> int:
    starts = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(starts, default=0)


TEXTS = st.text(alphabet="ab\n", max_size=40)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=6), max_size=5).map(tuple)


@settings(deadline=None, max_examples=500)
@given(pieces=st.lists(TEXTS, max_size=8), stops=STOPS)
def test_any_cut_gives_what_a_search_over_the_whole_text_gives(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher = StopStringMatcher(stops)
    emitted, fed, stopped_by = "", "", None
    for piece in pieces:
        text, stopped_by = matcher.feed(piece)
        fed += piece
        emitted += text
        if stopped_by is not None:
            break
        # Nothing is held back longer than it must be, and nothing that may belong to a stop string gets out.
        assert len(emitted) == len(fed) - oracle_held(fed, stops)
    emitted += matcher.flush()
    assert (emitted, stopped_by) == oracle(fed, stops)


def test_a_false_start_is_released() -> None:
    matcher = StopStringMatcher(("\n\nUser:",))
    assert matcher.feed("hello\n\nUs") == ("hello", None)
    assert matcher.feed("ually") == ("\n\nUsually", None)
    assert matcher.flush() == ""


def test_the_start_of_a_stop_string_is_emitted_at_the_end() -> None:
    matcher = StopStringMatcher(("STOP",))
    assert matcher.feed("go ST") == ("go ", None)
    assert matcher.flush() == "ST"
    assert matcher.flush() == ""


def test_after_the_stop_nothing_more_comes() -> None:
    matcher = StopStringMatcher(("x",))
    assert matcher.feed("abxcd") == ("ab", "x")
    assert matcher.feed("more") == ("", "x")
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (("abc", "b"), ("a", "b")),
        (("ab", "b"), ("", "ab")),
        (("b", "ab"), ("", "ab")),
    ],
)
def test_overlapping_stop_strings(stops: tuple[str, ...], expected: tuple[str, str]) -> None:
    assert StopStringMatcher(stops).feed("abc") == expected


def test_without_stop_strings_text_passes() -> None:
    matcher = StopStringMatcher(())
    assert matcher.feed("any 🌍 text") == ("any 🌍 text", None)


def test_a_stop_string_may_be_of_any_script() -> None:
    matcher = StopStringMatcher(("终了", "👩‍👩‍👧"))
    assert matcher.feed("文終终") == ("文終", None)
    assert matcher.feed("了。") == ("", "终了")

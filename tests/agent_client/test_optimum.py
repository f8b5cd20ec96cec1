"""The infinite-cache optimum against one that compares everything with everything."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.replay.optimum import KnownPrefixes, Stream, ideal_cached

# Few ids, so that prefixes meet; some whose bytes are alike, so that a byte's boundary is no token's boundary.
ids = st.lists(st.sampled_from([0, 1, 2, 256, 257, 65536, 2**31 - 1]), max_size=12)


def packed(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(deadline=None)
@given(st.lists(ids, max_size=20), ids)
def test_longest_known_prefix_equals_a_search_through_all(members: list[list[int]], wanted: list[int]) -> None:
    known = KnownPrefixes()
    for member in members:
        known.add(packed(member))
    assert known.longest(packed(wanted)) == max((shared(wanted, member) for member in members), default=0)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[list[int], list[int], int, int | None]]:
    out = []
    for start in draw(st.permutations(range(0, 40, 2)))[: draw(st.integers(1, 12))]:
        # Odd ends, so that no two moments are the same.
        end = draw(st.one_of(st.none(), st.integers(start // 2, 30).map(lambda x: 2 * x + 1)))
        out.append((draw(ids), draw(ids), start, end))
    return out


@settings(deadline=None)
@given(streams())
def test_ideal_cached_equals_brute_force(calls: list[tuple[list[int], list[int], int, int | None]]) -> None:
    expected = []
    for prompt, _, start, _ in calls:
        known = [other for other, _, begun, _ in calls if begun < start]
        known += [(other + output)[:-1] for other, output, _, end in calls if end is not None and end < start]
        best = max((shared(prompt, other) for other in known), default=0)
        expected.append(max(0, min(best, len(prompt) - 1)))
    made = [Stream(packed(p), packed(o), float(s), None if e is None else float(e)) for p, o, s, e in calls]
    assert ideal_cached(made) == expected


def test_a_next_turn_reuses_prompt_and_output_but_the_last_token() -> None:
    first = Stream(packed([1, 2, 3]), packed([7, 8, 9]), 0.0, 1.0)
    second = Stream(packed([1, 2, 3, 7, 8, 9, 4]), b"", 1.0, None)
    assert ideal_cached([first, second]) == [0, 5]


def test_a_prompt_sent_again_still_computes_its_last_token() -> None:
    once = Stream(packed([1, 2, 3]), b"", 0.0, None)
    again = Stream(packed([1, 2, 3]), b"", 0.5, None)
    assert ideal_cached([once, again]) == [0, 2]

from __future__ import annotations

import pytest

from radix.errors import InvalidArgument
from radix.sizes import format_bytes, parse_bytes, parse_capacity, parse_tokens, short_count


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("4096B", 4096),
        ("80GiB", 80 * 2**30),
        ("80 gib", 80 * 2**30),
        ("80Gi", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("80G", 80 * 10**9),
        ("1.5TiB", 3 * 2**39),
        ("0.1KiB", 102),
        ("1_000", 1000),
    ],
)
def test_bytes_are_read(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "80 GiB each", "80XiB", "nan", "1e3", "0", "0.5", "80,000"])
def test_what_is_no_number_of_bytes_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"write bytes such as 80GiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("32768", 32768), ("64k", 64_000), ("1.5M", 1_500_000), ("2b", 2 * 10**9)])
def test_tokens_are_read(text: str, value: int) -> None:
    assert parse_tokens(text) == value


@pytest.mark.parametrize("text", ["inf", "0", "-5", "64KiB", "many"])
def test_what_is_no_number_of_tokens_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write tokens such as 32768"):
        parse_tokens(text)


def test_a_capacity_may_have_no_limit() -> None:
    assert parse_capacity(" Inf ") is None
    assert parse_capacity("2M") == 2_000_000
    with pytest.raises(InvalidArgument, match="or inf"):
        parse_capacity("infinitely")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (131072, "128 KiB"),
        (70272, "68.62 KiB"),
        (80 * 2**30, "80 GiB"),
        (2**60, "1,024 PiB"),
    ],
)
def test_bytes_are_written_with_a_binary_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_counts_are_shortened() -> None:
    assert [short_count(n) for n in (0, 999, 1000, 138_841_600, 3_012_680_174)] == [
        "0",
        "999",
        "1.0k",
        "138.8M",
        "3.0B",
    ]

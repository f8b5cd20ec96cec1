"""The file of keys that runtime and gateway share, and the namespaces of tenants."""

from __future__ import annotations

from pathlib import Path

import pytest
from radixloop.tenants import OPERATOR, BadKeyFile, bearer_of, is_salt_of, read_keys, salt_of, salt_told


def test_no_two_pairs_of_tenant_and_salt_have_one_namespace() -> None:
    pairs = [(None, None), (None, "a"), ("a", "b"), ("a", 'b"'), ("ab", None), ("a", None), ("b", None)]
    assert len({salt_of(*pair) for pair in pairs if pair[0]}) == 5
    assert salt_of(None, "") is None
    assert salt_of(None, "s") == "s"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ana\n", ":1: must read"),
        ("ana key-of-x more\n", ":1: must read"),
        ("a na key-of-x\n", ":1: must read"),
        ("ok key-of-x\n[b] key-of-x\n", ":2: must read"),
        ("ana key-of-x\nbob key-of-x\n", ":2: the key of bob is the key of ana too"),
        ("# nobody\n", "holds no key"),
        (None, "No such file"),
    ],
)
def test_a_file_of_keys_that_is_none(tmp_path: Path, text: str | None, complaint: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadKeyFile, match=complaint) as caught:
        read_keys(file)
    assert "key-of-" not in str(caught.value)


def test_a_tenant_finds_its_own_namespaces_by_the_names_that_it_gave_them() -> None:
    for salt in (None, "s", 'with "quotes"', "ümläut"):
        assert is_salt_of("a", salt_of("a", salt))
        assert salt_told("a", salt_of("a", salt)) == salt
        assert not is_salt_of("a", salt_of("ab", salt))
        assert not is_salt_of("ab", salt_of("a", salt))
    assert not is_salt_of("a", None)
    assert salt_told("a", '["a", broken') == '["a", broken'
    assert salt_of(OPERATOR, "a") == "a"


def test_keys_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who may call\n\nana one\nana two\n* boss\n")
    keys = read_keys(file)
    assert [keys.tenant_of(key) for key in ("one", "two", "boss", "", "three", "\udcff")] == [
        "ana",
        "ana",
        "*",
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("header", "key"), [("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", ""), ("Bearer", ""), ("", "")]
)
def test_the_key_of_a_header(header: str, key: str) -> None:
    assert bearer_of(header) == key

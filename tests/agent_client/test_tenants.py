"""The file of keys that runtime and gateway share, and the namespaces of tenants."""

from __future__ import annotations

from pathlib import Path

import pytest
from radixloop.tenants import (
    OPERATOR,
    BadKeyFile,
    KeyHolder,
    bearer_of,
    is_salt_of,
    read_keys,
    salt_of,
    salt_told,
    tenant_of_salt,
)


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
        ("ana key-of-x priority=101\n", ":1: must read TENANT KEY or TENANT KEY priority=N"),
        ("ana key-of-x priority=-1\n", ":1: must read"),
        ("ana key-of-x priority=\n", ":1: must read"),
        ("* key-of-x priority=5\n", ":1: must read"),
        # Whose key was forgotten has none that anybody could guess.
        ("ana priority=5\n", ":1: must read"),
        ("ana key-of-x\nana key-of-x priority=5\n", ":2: this key of ana has another priority"),
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


def test_what_an_operator_asks_for_a_tenant_is_on_that_tenants_account() -> None:
    for salt in (None, "s", 'with "quotes"', "ümläut", '["b", "x"]'):
        assert tenant_of_salt(salt_of("a", salt)) == "a"
    for other in (None, "", "s", '["no tenant name", "s"]', "[[1], 2]", "[" * 5000, '["a"]'):
        assert tenant_of_salt(other) == other


def test_keys_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who may call\n\nana one\nana two priority=100\nbob three  priority=7\n* boss\n")
    keys = read_keys(file)
    assert [keys.holder_of(key) for key in ("one", "two", "three", "boss", "", "four", "\udcff")] == [
        KeyHolder("ana", 0),
        KeyHolder("ana", 100),
        KeyHolder("bob", 7),
        KeyHolder("*", 100),
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("header", "key"), [("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", ""), ("Bearer", ""), ("", "")]
)
def test_the_key_of_a_header(header: str, key: str) -> None:
    assert bearer_of(header) == key

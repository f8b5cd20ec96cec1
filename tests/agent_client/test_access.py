"""How the client is told of TLS and of its token, and that the token is shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_client import Access, InvalidArgument
from agent_client.cli import app


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"RADIXLOOP_{name}", raising=False)


def test_the_environment_says_it_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Access.from_environment() == Access()
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    monkeypatch.setenv("RADIXLOOP_TOKEN_FILE", str(file))
    monkeypatch.setenv("RADIXLOOP_TLS", "1")
    assert Access.from_environment() == Access(tls=True, token="from-the-file")
    monkeypatch.setenv("RADIXLOOP_TOKEN", "itself")
    assert Access.from_environment().metadata() == (("authorization", "Bearer itself"),)


def test_a_token_is_shown_nowhere(tmp_path: Path) -> None:
    assert "s3cret" not in repr(Access(token="s3cret"))
    with pytest.raises(InvalidArgument) as caught:
        Access(token="s3cret token")
    assert "s3cret" not in str(caught.value)
    file = tmp_path / "keys"
    file.write_text("tenant s3cret\n")
    done = CliRunner().invoke(app, ["stats", "--token-file", str(file)])
    assert done.exit_code == 2
    assert "token_file" in done.output
    assert "s3cret" not in done.output


@pytest.mark.parametrize(
    "arguments", [["--tls-cert", "c"], ["--tls-ca", "/nowhere/ca"], ["--token-file", "/nowhere/t"]]
)
def test_options_that_cannot_be_are_told_by_name(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["stats", *arguments])
    assert done.exit_code == 2
    assert arguments[0][2:].replace("-", "_") in done.output

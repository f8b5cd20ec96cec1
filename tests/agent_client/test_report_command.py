"""`agent-client replay --html` against the toy runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_client.commands.replay import run
from agent_client.replay import ReplayOptions
from agent_client.words import count, share

from .toy_runtime import ToyRuntime


def replayed(toy: ToyRuntime, page: Path, **more: Any) -> int:
    options = ReplayOptions(output_tokens=2)
    settings: dict[str, Any] = {"format": None, "per_turn": False, "json_file": None, "html_file": page, **more}
    return run(None, toy.target, options, sessions=2, **settings)


def test_the_page_and_the_json_say_the_same(toy: ToyRuntime, tmp_path: Path) -> None:
    page, report, prices = (tmp_path / name for name in ("page.html", "report.json", "prices.json"))
    prices.write_text('{"currency": "EUR", "per_million_tokens": {"input": 3, "cached_input": 0, "output": 0}}')
    assert replayed(toy, page, json_file=str(report), prices=prices) == 0
    html = page.read_text()
    (told,) = json.loads(report.read_text())["runs"]
    assert f"<title>Replay of repository.jsonl: {share(told['hit_rate'])} from the cache</title>" in html
    for name in ("input_tokens", "cached_tokens", "computed_tokens"):
        assert f"<td>{count(told[name])}</td>" in html
    assert f"EUR {told['cached_tokens'] * 3 / 1e6:.2f}" in html
    # The toy's tokens are bytes: the tree shows how the prompts begin.
    assert "&lt;system&gt;" in html or "{&#34;type&#34;" in html


@pytest.mark.parametrize(
    ("page", "prices", "words"),
    [
        ("none/page.html", None, "No such file"),
        (".", None, "Is a directory"),
        ("page.html", "bad.json", "per_million_tokens.output is null"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_replay(
    toy: ToyRuntime, tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str, prices: str | None, words: str
) -> None:
    (tmp_path / "bad.json").write_text('{"per_million_tokens": {"input": 1, "cached_input": 1}}')
    assert replayed(toy, tmp_path / page, prices=prices and tmp_path / prices) == 2
    assert words in capsys.readouterr().err
    assert toy.calls("Generate") == 0
    assert not (tmp_path / "page.html").exists()


def test_without_the_template_engine_the_extra_is_named(
    toy: ToyRuntime, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("agent_client.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert replayed(toy, tmp_path / "page.html") == 2
    assert "pip install 'radixloop[report]'" in capsys.readouterr().err

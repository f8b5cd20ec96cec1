"""The quality report on a tiny model: what it holds, and that it sees a pool that loses something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime.cli import app
from runtime.errors import InvalidRequest
from runtime.kv.quality.comparison import Score
from runtime.kv.quality.recall import _is_call
from runtime.kv.quality.report import QualityConfig, measure_quality, named_settings
from runtime.kv.quality.texts import chats, rendered, texts
from runtime.models.loaded_model import LoadedModel


def config(**changes: Any) -> QualityConfig:
    values: dict[str, Any] = {
        "settings": named_settings("int8,int4,fp32/int4", "none"),
        "kinds": ["prose"],
        "contexts": [48],
        "tokens": 96,
        "needle_contexts": [],
        "calls": 0,
        "seed": 1,
    }
    return QualityConfig(**{**values, **changes})


def test_fewer_bits_move_answers_further(tiny: LoadedModel) -> None:
    report = measure_quality(tiny, config())
    rows = {row["kv_dtype"]: row for row in report["dtypes"]}
    assert list(rows) == ["fp32", "int8", "int4", "fp32/int4"]
    assert rows["fp32"]["kl"] == 0 == rows["fp32"]["perplexity_delta"]
    assert rows["fp32"]["top1"] == 1
    assert 0 < rows["int8"]["kl"] < rows["int4"]["kl"]
    assert 0 < rows["fp32/int4"]["kl"] < rows["int4"]["kl"]
    assert rows["int4"]["bytes_per_token"] < rows["int8"]["bytes_per_token"] < rows["fp32"]["bytes_per_token"]
    assert list(rows["int8"]["decode_ms_by_context"].items()) == [(48, rows["int8"]["decode_ms"])]
    assert rows["int8"]["parts"][0]["tokens"] == rows["int8"]["tokens"] == 2 * 47
    assert report["texts"][0]["sha256"]


@pytest.mark.slow
def test_a_report_comes_out_the_same_twice(tiny: LoadedModel) -> None:
    first, second = (measure_quality(tiny, config()) for _ in range(2))
    for one, other in zip(first["dtypes"], second["dtypes"], strict=True):
        assert one["perplexity"] == other["perplexity"]
        assert one["kl"] == other["kl"]


@pytest.mark.slow
def test_needles_and_calls_are_counted(tiny: LoadedModel) -> None:
    report = measure_quality(tiny, config(needle_contexts=[64], settings=named_settings("fp32,int8", "none")))
    assert [row["kv_dtype"] for row in report["dtypes"]] == ["fp32", "int8"]
    for row in report["dtypes"]:
        assert row["needles"]["asked"] == 5
        assert sum(row["needles"]["by_depth"].values()) == row["needles"]["found"]
        # Needles are no text that is scored.
        assert row["tokens"] == 2 * 47


def test_scores_add_up() -> None:
    total, one = Score(), Score(tokens=2, nats=2.0, divergence=0.5, agreed=1)
    total.add(one)
    total.add(one)
    assert total.report(one) == {
        "tokens": 4,
        "perplexity": pytest.approx(2.718281828),
        "perplexity_delta": pytest.approx(0),
        "kl": 0.25,
        "top1": 0.5,
    }


@pytest.mark.parametrize("kind", ["prose", "code", "maths", "chat"])
def test_every_text_is_there(kind: str) -> None:
    [text] = texts([kind], None)
    # At four characters a token, three stretches of 2,048 fit.
    assert len(text.text) > 4 * 3 * 2048
    assert text.source


def test_recorded_calls_are_calls() -> None:
    session = next(iter(chats(None)))
    assert "<tool_call>{" in rendered(session)
    assert _is_call('{"name": "grep", "arguments": {"pattern": "x"}}', {"grep"})
    assert not _is_call('{"name": "grep", "arguments": {"pattern": "x"}}', {"read_file"})
    assert not _is_call('{"name": "grep", "arguments": ', {"grep"})
    assert not _is_call("[]", {"grep"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": ["poems"]}, "text is 'poems'"),
        ({"contexts": [10**6]}, "contexts is 1000000"),
        ({"contexts": [64, 24]}, "contexts is 24: must be at least 25"),
        ({"calls": 1, "loops": Path("nowhere.jsonl")}, "loops is 'nowhere.jsonl'"),
    ],
)
def test_what_cannot_be_measured_is_named(tiny: LoadedModel, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        measure_quality(tiny, config(**change))


def test_the_command(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One two three four five six seven eight nine ten. " * 40)
    short = ["--text", str(text), "--contexts", "32", "--tokens", "64", "--needles", "none", "--calls", "0"]
    named = ["quality", "--model", str(tiny_model), "--kv-dtype", "int8", *short]
    done = CliRunner().invoke(app, [*named, "--json", "-"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["dtypes"]
    assert {"perplexity", "perplexity_delta", "kl", "top1", "bytes_per_token", "decode_ms"} <= rows[1].keys()
    assert "int8" in CliRunner().invoke(app, named).stdout
    refused = CliRunner().invoke(app, [*named, "--kv-dtype", "int3"])
    assert refused.exit_code == 2
    assert "must be one of auto, fp32" in refused.output

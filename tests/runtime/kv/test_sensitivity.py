"""Which layers are raised: by what was measured, within the bytes that may be added, and once for a model."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import InvalidRequest
from runtime.kv.measured import measured_once
from runtime.kv.precision import KVFormat, LayerShape
from runtime.kv.sensitivity import MOST_BYTES, MOST_OF_FP32, Place, choose_raised, measure, sample_tokens
from runtime.kv.settings import KVSettings, parse_layers
from runtime.models.loaded_model import LoadedModel

SHAPES = [LayerShape(layer, 3, 64, 64) for layer in range(30)]
INT4 = KVFormat("int4", "int4")


def costs(**high: float) -> dict[Place, float]:
    """Nats of 0.001 everywhere but in `keys_3=0.01`."""
    found: dict[Place, float] = {}
    for layer in range(30):
        found[layer, "keys"] = high.get(f"keys_{layer}", 1e-3)
        found[layer, "values"] = high.get(f"values_{layer}", 1e-3)
    return found


def test_what_stands_out_is_raised() -> None:
    assert choose_raised(costs(keys_3=5e-3, values_9=1e-2), INT4, SHAPES) == {(3, "keys"), (9, "values")}
    assert choose_raised(costs(keys_3=1.2e-3), INT4, SHAPES) == frozenset()


def test_a_token_gains_few_bytes() -> None:
    raised = choose_raised({place: 1e-3 * (1 + place[0]) for place in costs()}, INT4, SHAPES)
    plain, found = (one.bytes_per_token(SHAPES) for one in (INT4, INT4.raising(*raised)))
    assert plain < found <= MOST_BYTES * plain + 1
    assert found <= MOST_OF_FP32["int4"] * KVFormat("fp32", "fp32").bytes_per_token(SHAPES)
    assert min(layer for layer, half in raised) > 20


def test_wide_heads_leave_room_for_more() -> None:
    """Their scales take few bytes, so the share of fp32's bytes is reached later."""
    wide = [LayerShape(layer, 1, 256, 256) for layer in range(30)]
    some = {place: 1e-3 * (1 + place[0]) for place in costs()}
    raised = choose_raised(some, INT4, wide)
    plain, found, exact = (one.bytes_per_token(wide) for one in (INT4, INT4.raising(*raised), KVFormat("fp32", "fp32")))
    assert MOST_BYTES * plain < found <= MOST_OF_FP32["int4"] * exact
    # Exact values have no say in what keys may take.
    keys = KVFormat("int4", "fp32")
    raised = choose_raised({place: cost for place, cost in some.items() if place[1] == "keys"}, keys, wide)
    added = keys.raising(*raised).bytes_per_token(wide) - keys.bytes_per_token(wide)
    assert 0 < added <= max(MOST_OF_FP32["int4"] * exact / 2, (MOST_BYTES - 1) * keys.bytes_per_token(wide))


def test_what_costs_no_byte_is_raised_from_the_median_on() -> None:
    found = choose_raised({(layer, "keys"): 1e-6 * layer for layer in range(30)}, KVFormat("fp8_e4m3", "fp32"), SHAPES)
    assert found == {(layer, "keys") for layer in range(15, 30)}


def test_only_packed_halves_are_measured(tiny: LoadedModel) -> None:
    tokens = sample_tokens(None, tiny.info.vocab_size)
    found = measure(tiny.forward, KVFormat("int4", "fp16"), len(tiny.layers), tokens, tiny.model.device)
    assert found.keys() == {(layer.layer, "keys") for layer in tiny.layers}
    finer = measure(tiny.forward, KVFormat("int8", "fp16"), len(tiny.layers), tokens, tiny.model.device)
    assert all(0 < finer[place] < found[place] for place in found)


def test_a_measurement_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXLOOP_CACHE_DIR", str(tmp_path))
    calls: list[int] = []

    def measured() -> dict[Place, float]:
        calls.append(1)
        return {(0, "keys"): 0.25, (1, "values"): 0.5}

    first = measured_once("weights", INT4, measured)
    assert measured_once("weights", INT4, measured) == first
    assert len(calls) == 1
    measured_once("others", INT4, measured)
    measured_once("weights", KVFormat("int4", "int8"), measured)
    measured_once("", INT4, measured)
    measured_once("", INT4, measured)
    assert len(calls) == 5
    for file in tmp_path.rglob("*.json"):
        file.write_text("[[0, 'torn")
    assert measured_once("weights", INT4, measured) == first
    assert len(calls) == 6


def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RADIXLOOP_CACHE_DIR", str(tmp_path / "file"))
    caplog.set_level(logging.INFO)
    assert measured_once("weights", INT4, lambda: {(0, "keys"): 1.0}) == {(0, "keys"): 1.0}
    assert "the next start measures again" in caplog.text


def test_a_model_gets_the_pool_that_was_asked_for(tiny: LoadedModel) -> None:
    plain = tiny.repack(KVSettings("int4", sensitive="none"))
    listed = tiny.repack(KVSettings("int4", sensitive="keys:1,0"))
    apart = tiny.repack(KVSettings("int8", values="fp16"))
    assert plain.info.kv_dtype == "int4"
    assert listed.info.kv_dtype == "int4+3"
    assert apart.info.kv_dtype == "k:int8,v:fp16"
    assert listed.kv_format.at(0, "values") == listed.kv_format.at(1, "keys") == "int8"
    assert listed.kv_format.at(1, "values") == "int4"
    prints = {one.info.fingerprint for one in (tiny, plain, listed, apart)}
    assert len(prints) == 4
    assert tiny.repack(KVSettings()).info == tiny.info
    assert plain.info.kv_bytes_per_token < listed.info.kv_bytes_per_token < tiny.info.kv_bytes_per_token


@pytest.mark.parametrize("text", ["all", "1,", "-1", "keys", "queries:1", "1.5", "keys:", "", "auto,1"])
def test_a_layer_list_that_is_none_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="kv_sensitive_layers"):
        parse_layers(text)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (KVSettings("int3"), "kv_dtype is 'int3'"),
        (KVSettings(keys="float9"), "k_dtype is 'float9'"),
        (KVSettings(values=""), "v_dtype is ''"),
        (KVSettings("int8", sensitive="99"), "kv_sensitive_layers is 99: the last layer is"),
    ],
)
def test_a_setting_that_cannot_be_is_named(tiny: LoadedModel, settings: KVSettings, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        tiny.repack(settings)


def test_random_ids_stand_in_for_a_tokenizer(tiny: LoadedModel) -> None:
    tokens = sample_tokens(None, 50)
    assert tokens.dtype == np.int32
    assert tokens.min() >= 0
    assert tokens.max() < 50
    assert len(sample_tokens(tiny.tokenizer, 0))

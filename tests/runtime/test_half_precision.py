"""bfloat16 and float16 weights and pools pass the token-equality suite, at a tolerance measured for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import KVFormat
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.models.model_files import locate
from tests.runtime.half_equality import HalfWorkload, half_workload
from tests.runtime.token_equality import CASES, Workload, hit_against_miss, partial_block

Case = Callable[[Workload], None]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(scope="module")
def calm_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with weights so narrow that it does not blow up the rounding of 8 bits."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("calm-llama")
    config = AutoConfig.from_pretrained(tiny_model)
    config.initializer_range = 0.15
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=DTYPES)
def tiny_half(calm_model: Path, request: pytest.FixtureRequest) -> HalfWorkload:
    return half_workload(load_model(str(calm_model), dtype=request.param, device="cpu"), calm_model, count=8, n=12)


@pytest.fixture(scope="module", params=DTYPES)
def smollm2_half(request: pytest.FixtureRequest) -> HalfWorkload:
    loaded: LoadedModel = load_model("smollm2", dtype=request.param, device="cpu")
    folder, _ = locate("smollm2", DTYPES[request.param])
    return half_workload(loaded, folder, count=4, n=16, hit_lengths=[1, 15, 16, 17, 31, 43])


@pytest.mark.parametrize("case", CASES)
def test_tiny(tiny_half: HalfWorkload, case: Case) -> None:
    case(tiny_half)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_smollm2(smollm2_half: HalfWorkload, case: Case) -> None:
    case(smollm2_half)


@pytest.mark.models
@pytest.mark.slow
def test_smollm2_is_judged_strictly(smollm2_half: HalfWorkload, record_property: Callable[[str, object], None]) -> None:
    record_property("noise", smollm2_half.noise)
    print(f"noise {smollm2_half.noise:.3f}, tokens that pass at a place {smollm2_half.admissible():.2f}")
    # Of 49,152.
    assert smollm2_half.admissible() < 20


def test_the_pool_has_the_dtype(tiny_half: HalfWorkload) -> None:
    assert tiny_half.loaded.kv_format == KVFormat.dense(tiny_half.loaded.model.dtype)
    assert tiny_half.loaded.model.dtype in DTYPES.values()


def test_few_tokens_would_pass(tiny_half: HalfWorkload) -> None:
    # Of 262.
    assert tiny_half.admissible() < 3


def test_hits_and_misses_are_within_the_noise(tiny_half: HalfWorkload) -> None:
    # Each of the two may miss the truth by that much.
    assert hit_against_miss(tiny_half) <= tiny_half.limit


def test_values_in_the_wrong_slots_do_not_pass(tiny_half: HalfWorkload, monkeypatch: pytest.MonkeyPatch) -> None:
    right = KVPool._copy_at_once

    def shifted(pool: KVPool, copies: Any) -> None:
        right(pool, copies)
        for copy in copies:
            for kv in pool.layers.values():
                kv.values[copy.dst, : copy.tokens] = kv.values[copy.dst, : copy.tokens].roll(1, 0)

    monkeypatch.setattr(KVPool, "_copy_at_once", shifted)
    with pytest.raises(AssertionError, match="below the best, limit"):
        partial_block(tiny_half)

"""Deterministic mode: equal bits whatever was cached and whatever shares the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from runtime.attention.deterministic import SEGMENT
from runtime.errors import InvalidRequest, ModelRefused
from runtime.models import row_invariant
from runtime.models.linear_groups import group_linears
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model, prepare_model
from runtime.models.packed_product import packed_product, plain_product
from runtime.models.row_invariant import RowTile, holds, in_full_vectors, make_row_invariant, on_tiles
from tests.runtime import test_attention
from tests.runtime.bit_equality import CASES, BitWork, bit_work, every_length_of_a_hit

Case = Callable[[BitWork], None]

SHAPE: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 48,
    # Not a whole number of vector registers.
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def network(config: str = "LlamaConfig", dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    torch.manual_seed(3)
    made = getattr(transformers, config)(**SHAPE, **fields)
    return transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)


def deterministic(config: str, dtype: torch.dtype = torch.float32, **fields: Any) -> LoadedModel:
    return prepare_model(network(config, dtype, **fields), None, name=config, deterministic=True)


@pytest.fixture(scope="module")
def tiny_bits(tiny_model: Path) -> BitWork:
    """Prompts of up to three segments."""
    loaded = load_model(str(tiny_model), dtype="fp32", device="cpu", deterministic=True)
    lengths = [SEGMENT + 60, 2 * SEGMENT + 1, 50, 77, 90, 130, SEGMENT - 3, SEGMENT]
    hits = [*range(1, 34), 47, 48, 49]
    return bit_work(loaded, lengths, 12, hits)


@pytest.fixture(scope="module")
def smollm2_bits() -> BitWork:
    loaded = load_model("smollm2", dtype="fp32", device="cpu", deterministic=True)
    return bit_work(loaded, [SEGMENT + 60, 50, 77, 90, 61, 45, 130, SEGMENT], 6, [1, 15, 16, 17, 31, 43])


@pytest.mark.parametrize("case", CASES)
def test_tiny(tiny_bits: BitWork, case: Case) -> None:
    case(tiny_bits)


@pytest.mark.parametrize("length", [SEGMENT - 1, SEGMENT, SEGMENT + 1, SEGMENT + 37])
def test_tiny_hits_beside_a_segment_border(tiny_bits: BitWork, length: int) -> None:
    every_length_of_a_hit(
        replace(tiny_bits, prompts=tiny_bits.prompts[:2], expected=tiny_bits.expected[:2], hit_lengths=[length])
    )


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_smollm2(smollm2_bits: BitWork, case: Case) -> None:
    case(smollm2_bits)


@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("make", test_attention.STEPS)
def test_attention_equals_the_definition(make: Callable[[int], test_attention.Step], block_size: int) -> None:
    step = make(block_size)
    for name, options in test_attention.OPTIONS.items():
        if name != "softcap":
            step.check("deterministic", options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ("LlamaConfig", {}),
        ("Qwen2Config", {}),
        ("MistralConfig", {"sliding_window": 100}),
        ("Gemma3TextConfig", {"sliding_window": 40}),
    ],
)
def test_families_come_out_with_the_same_bits(config: str, fields: dict[str, Any], dtype: torch.dtype) -> None:
    # Raises where they do not.
    assert deterministic(config, dtype, **fields).info.attention_backend == "deterministic"


@pytest.mark.parametrize(
    ("config", "fields", "reason"),
    [
        # Experts see as many rows as happen to be sent to them.
        ("MixtralConfig", {"num_local_experts": 4}, "does not come out with the same bits"),
        ("Gemma2Config", {}, "attention is 'deterministic': cannot serve this model here: has no softcap"),
    ],
)
def test_what_cannot_be_deterministic_is_refused(config: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises((ModelRefused, InvalidRequest), match=reason):
        deterministic(config, **fields)


def nosy() -> Any:
    """A network of which one layer looks at how many others came with a token."""
    made = network()

    def nudge(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        return out * (1 + 1e-6 * out.shape[1])

    made.model.layers[1].mlp.register_forward_hook(nudge)
    return made


def test_a_layer_that_looks_at_its_neighbours_is_refused() -> None:
    prepare_model(nosy(), None, name="nosy", forward="model")
    with pytest.raises(ModelRefused, match="in uneven chunks"):
        prepare_model(nosy(), None, name="nosy", forward="model", deterministic=True)


def by_size(rows: torch.Tensor) -> torch.Tensor:
    """Its result depends on how many rows come at once, and on none of them in particular."""
    return rows * (1 + 1e-6 * len(rows))


def by_place(rows: torch.Tensor) -> torch.Tensor:
    return rows * (1 + 1e-6 * (torch.arange(len(rows))[:, None] % 4))


def test_products_run_at_one_size_where_the_size_shows() -> None:
    assert not holds(by_size, RowTile(4, 512), 24, torch.float32)
    assert holds(by_size, RowTile(64, 64), 24, torch.float32)


def test_a_product_that_knows_places_is_not_trusted() -> None:
    assert not any(holds(by_place, tile, 24, torch.float32) for tile in row_invariant._TILES)


def test_a_library_without_any_such_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_invariant, "holds", lambda *_: False)
    grouped = network()
    group_linears(grouped, input_ids=torch.tensor([[1, 2]]), use_cache=False)
    with pytest.raises(ModelRefused, match=r"layers.0.self_attn.q_proj .48 to 128, torch.float32"):
        make_row_invariant(grouped)


def test_off_the_cpu_it_is_refused() -> None:
    with torch.device("meta"):
        elsewhere = network()
    with pytest.raises(ModelRefused, match="on the CPU only, and the model is on meta"):
        make_row_invariant(elsewhere)


def test_a_layer_outside_every_group_is_refused() -> None:
    with pytest.raises(ModelRefused, match=r"model.layers.0.self_attn.q_proj is a linear layer of a kind"):
        make_row_invariant(network())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_row_has_the_same_bits_in_any_company(packed: bool, bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 1536)
    plain = plain_product(weight, torch.randn(40) if bias else None)
    product = packed_product(weight, torch.randn(40) if bias else None) if packed else plain
    assert product is not None
    tile = next(tile for tile in row_invariant._TILES if holds(product, tile, 1536, torch.float32))
    tiled = on_tiles(product, tile)
    rows = torch.randn(1100, 1536)
    with torch.inference_mode():
        alone = torch.cat([tiled(row[None]) for row in rows])
        torch.testing.assert_close(alone, product(rows), rtol=1e-4, atol=1e-3)
        for count in (1, 2, 3, 5, 16, 33, 511, 513, 1100):
            assert torch.equal(tiled(rows[None, :count])[0], alone[:count])
            assert torch.equal(tiled(rows[-count:]), alone[-count:])


@pytest.mark.parametrize("function", [nn.functional.silu, nn.functional.gelu, torch.exp])
def test_a_number_has_the_same_bits_in_any_place(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    numbers = torch.randn(3, 33_001)
    whole = in_full_vectors(function, numbers)
    torch.testing.assert_close(whole, function(numbers))
    for place in (0, 15, 16, 4097, 32_767, 33_000):
        assert torch.equal(in_full_vectors(function, numbers[1:2, place]), whole[1:2, place])
        assert torch.equal(in_full_vectors(function, numbers[:, place : place + 67]), whole[:, place : place + 67])


def test_another_back_end_is_refused_by_name(tiny_model: Path) -> None:
    with pytest.raises(InvalidRequest, match="attention is 'sdpa': must be auto in deterministic mode"):
        load_model(str(tiny_model), device="cpu", attention="sdpa", deterministic=True)

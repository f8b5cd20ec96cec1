"""Records: their bytes, what comes back of them, and what depends on nothing but a head's own numbers."""

from __future__ import annotations

import pytest
import torch

from radix.kv_bytes import HALVES, PRECISIONS, Half, head_bytes
from runtime.kv.packing import Packing, packing
from runtime.kv.rotation import rotate, rotate_by_sums

PACKED = [name for name in PRECISIONS if name not in ("fp32", "bf16", "fp16")]
# Largest relative error of numbers as a normal distribution gives them, about a third above what is seen.
ERROR = {
    ("int8", "keys"): 0.009,
    ("int8", "values"): 0.009,
    ("fp8_e4m3", "keys"): 0.034,
    ("fp8_e4m3", "values"): 0.034,
    ("int4", "keys"): 0.06,
    ("int4", "values"): 0.13,
}


def make(name: str, half: Half) -> Packing:
    found = packing(name, keys=half == "keys")
    assert found is not None
    return found


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", PACKED)
class TestEach:
    @pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 16, 64, 80, 128])
    def test_records_have_the_bytes_that_plans_count(self, name: str, half: Half, dim: int) -> None:
        one = make(name, half)
        records = one.encode(torch.randn(5, 2, dim))
        assert records.dtype == torch.uint8
        assert records.shape == (5, 2, one.record_bytes(dim))
        assert one.record_bytes(dim) == head_bytes(name, half, dim)
        assert one.decode(records, dim).shape == (5, 2, dim)

    def test_numbers_come_back(self, name: str, half: Half) -> None:
        numbers = torch.randn(200, 3, 64, generator=torch.Generator().manual_seed(1)) * 3 + 0.5
        one = make(name, half)
        found = one.decode(one.encode(numbers), 64)
        assert float((found - numbers).norm() / numbers.norm()) < ERROR[name, half]

    def test_a_head_of_a_token_is_alone(self, name: str, half: Half) -> None:
        numbers = torch.randn(6, 2, 16, generator=torch.Generator().manual_seed(2))
        one = make(name, half)
        together = one.encode(numbers)
        for token in range(6):
            assert torch.equal(one.encode(numbers[token : token + 1, 1:]), together[token : token + 1, 1:])

    @pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-4, 1e4, 1e9])
    def test_extremes_stay_finite_and_in_range(self, name: str, half: Half, scale: float) -> None:
        numbers = torch.linspace(-1, 1, 64)[None, None] * scale
        one = make(name, half)
        found = one.decode(one.encode(numbers), 64)
        assert found.isfinite().all()
        assert float(found.abs().max()) <= max(1.1 * scale, 1e-5)

    def test_numbers_that_are_none_stay_none(self, name: str, half: Half) -> None:
        one = make(name, half)
        numbers = torch.ones(2, 1, 16)
        numbers[1, 0, 3] = float("nan")
        found = one.decode(one.encode(numbers), 16)
        assert found[0].isfinite().all()
        assert found[1].isnan().all()
        assert one.decode(torch.full((1, 1, one.record_bytes(16)), 255, dtype=torch.uint8), 16).isnan().all()


def test_the_bytes_that_are_promised() -> None:
    for name, share in (("int8", 0.28), ("int4", 0.16)):
        for dim in (64, 128, 256):
            assert sum(head_bytes(name, half, dim) for half in HALVES) <= share * 2 * dim * 4


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_keys_are_turned_so_that_an_outlier_costs_the_others_less(name: str) -> None:
    numbers = torch.randn(50, 1, 64, generator=torch.Generator().manual_seed(4))
    numbers[..., 7] = 60
    one = make(name, "keys")
    assert one.rotates
    backs = rotate(one.decode(one.encode(rotate(numbers)), 64)), one.decode(one.encode(numbers), 64)
    turned, straight = ((back - numbers)[..., torch.arange(64) != 7].norm() for back in backs)
    assert float(turned / straight) < 0.7


@pytest.mark.parametrize("dim", [1, 3, 16, 48, 64, 80])
def test_rotating_changes_no_score_and_undoes_itself(dim: int) -> None:
    query, key = torch.randn(2, 9, 4, dim, generator=torch.Generator().manual_seed(3))
    turned = rotate(query), rotate(key)
    torch.testing.assert_close((turned[0] * turned[1]).sum(-1), (query * key).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rotate(turned[1]), key, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rotate_by_sums(query), turned[0], rtol=1e-4, atol=1e-5)


def test_sums_do_not_depend_on_the_rows_beside() -> None:
    heads = torch.randn(33, 3, 64)
    whole = rotate_by_sums(heads)
    assert all(torch.equal(rotate_by_sums(heads[i : i + 1]), whole[i : i + 1]) for i in range(33))

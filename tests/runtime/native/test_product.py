"""The product kernel against double precision, and its promise that a row's bits do not depend on its company."""

from __future__ import annotations

import pytest
import torch

from runtime.models.packed_product import packed_product
from runtime.native import NativeUnavailable
from runtime.native.product import NativeProduct

SHAPES = [(1, 1), (3, 5), (48, 32), (49, 7), (95, 33), (576, 1536)]


def native(weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeProduct:
    try:
        return NativeProduct(weight, bias)
    except NativeUnavailable as why:
        pytest.skip(str(why))


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_exact_to_rounding(outputs: int, inputs: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    added = torch.randn(outputs, generator=generator) if bias else None
    product = native(weight, added)
    # From none over every number of rows that are taken together to more than one chunk.
    for count in (0, *range(1, 18), 131):
        x = torch.randn(count, inputs, generator=generator)
        exact = x.double() @ weight.double().T + (0 if added is None else added.double())
        scale = float(inputs) ** 0.5
        torch.testing.assert_close(product(x) / scale, (exact / scale).float(), rtol=1e-5, atol=1e-5)


def test_rows_may_lie_apart_and_in_batches() -> None:
    weight = torch.randn(50, 20)
    product = native(weight)
    wide = torch.randn(2, 3, 40)
    wanted = product(wide[..., :20].contiguous())
    assert wanted.shape == (2, 3, 50)
    assert torch.equal(product(wide[..., :20]), wanted)
    assert torch.equal(product(wide[1, :, :20]), wanted[1])
    turned = torch.randn(20, 9)
    assert torch.equal(product(turned.t()), product(turned.t().contiguous()))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    product = native(torch.randn(100, 1536), torch.randn(100))
    rows = torch.randn(200, 1536)
    together = product(rows)
    for begin, end in ((0, 1), (5, 7), (3, 14), (63, 66), (100, 200)):
        assert torch.equal(product(rows[begin:end]), together[begin:end])


def test_what_does_not_fit_is_refused() -> None:
    product = native(torch.randn(8, 4))
    for wrong in (torch.randn(2, 5), torch.randn(2, 4, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="does not fit a matrix of 4 inputs"):
            product(wrong)


def test_the_weight_is_copied() -> None:
    weight = torch.randn(60, 8)
    product = native(weight)
    x = torch.randn(3, 8)
    before = product(x)
    weight.zero_()
    assert torch.equal(product(x), before)


def test_it_is_what_float32_gets_where_it_serves() -> None:
    native(torch.ones(4, 4))
    assert isinstance(packed_product(torch.randn(8, 4), None), NativeProduct)
    assert not isinstance(packed_product(torch.randn(8, 4, dtype=torch.bfloat16), None), NativeProduct)


def test_without_it_onednn_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(weight: torch.Tensor, bias: torch.Tensor | None) -> NativeProduct:
        raise NativeUnavailable("no compiler")

    monkeypatch.setattr("runtime.models.packed_product.NativeProduct", unavailable)
    weight, x = torch.randn(70, 30), torch.randn(4, 30)
    product = packed_product(weight, None)
    if product is None:
        pytest.skip("this build of torch has no oneDNN")
    torch.testing.assert_close(product(x), x @ weight.T, rtol=1e-5, atol=1e-5)


def test_one_that_answers_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    native(torch.ones(4, 4))
    monkeypatch.setattr(NativeProduct, "__call__", lambda self, x: x.new_zeros(*x.shape[:-1], 8))
    product = packed_product(torch.ones(8, 4), None)
    assert not isinstance(product, NativeProduct)

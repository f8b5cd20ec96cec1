"""Joint and packed products answer as the layers they stand for, and leave alone what they must not touch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from runtime.models import linear_groups
from runtime.models.linear_groups import GroupMember, group_linears
from runtime.models.packed_product import packed_product, plain_product
from runtime.native.product import NativeProduct

WIDTH = 32


class Block(nn.Module):
    """Three layers over one tensor, of which the last has no bias; two over their sum; one over what those two make."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, 48)
        self.b = nn.Linear(WIDTH, 16)
        self.c = nn.Linear(WIDTH, 16, bias=False)
        self.d = nn.Linear(16, WIDTH)
        self.e = nn.Linear(16, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = self.a(x), self.b(x), self.c(x)
        both = torch.tanh(a[..., :16] + a[..., 32:] + b * c)
        return self.out(self.d(both) * self.e(both)) + x


class Net(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block(), block()])

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=x)


def made(block: Callable[[], nn.Module] = Block, dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(4)
    return Net(block).to(dtype).requires_grad_(False).eval()


def rows(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(count)).to(dtype)


def members(network: nn.Module) -> list[list[str]]:
    """Names of the layers of each group, in the order of its outputs."""
    names = {module: name for name, module in network.named_modules() if isinstance(module, GroupMember)}
    groups = {id(module.group): module.group for module in names}
    return [[names[member] for member in group.members] for group in groups.values()]


def test_layers_with_one_input_are_one_product() -> None:
    wanted, network = made(), made()
    assert group_linears(network, x=rows(2)) == 6
    assert members(network)[:3] == [
        ["blocks.0.a", "blocks.0.b", "blocks.0.c"],
        ["blocks.0.d", "blocks.0.e"],
        ["blocks.0.out"],
    ]
    with torch.inference_mode():
        for count in (0, 1, 3, 8, 40):
            x = rows(count)
            torch.testing.assert_close(network(x).logits, wanted(x).logits, rtol=1e-5, atol=1e-5)


def test_a_share_is_never_given_out_for_another_input() -> None:
    wanted, network = made(), made()
    group_linears(network, x=rows(2))
    block, plain = network.blocks[0], wanted.blocks[0]
    with torch.inference_mode():
        x, y = rows(2), rows(3)
        torch.testing.assert_close(block.a(x), plain.a(x))
        torch.testing.assert_close(block.b(y), plain.b(y))
        # The tensor of a finished pass, refilled: what was computed for it before is gone.
        buffer = rows(2)
        for again in (rows(2) * 2, rows(2) * 3):
            buffer.copy_(again)
            torch.testing.assert_close(block.a(buffer), plain.a(again))
            torch.testing.assert_close(block.a(buffer), plain.a(again))
            torch.testing.assert_close(block.b(buffer), plain.b(again))
            torch.testing.assert_close(block.c(buffer), plain.c(again))


class Tied(Block):
    """Layers that share a weight, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.e.weight = self.d.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(super().forward(x))


def test_tied_and_reused_layers_stay() -> None:
    wanted, network = made(Tied), made(Tied)
    group_linears(network, x=rows(2))
    assert members(network) == [[f"blocks.{i}.{name}" for name in "abc"] for i in range(2)]
    assert network.blocks[0].e.weight is network.blocks[0].d.weight
    with torch.inference_mode():
        torch.testing.assert_close(network(rows(5)).logits, wanted(rows(5)).logits, rtol=1e-5, atol=1e-5)


class Adapted(nn.Linear):
    """Like the layers of quantisers and adapters: a linear layer and something more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class WithAdapter(Block):
    def __init__(self) -> None:
        super().__init__()
        self.b = Adapted(WIDTH, 16)
        self.c.register_forward_hook(lambda module, args, out: out + 1)


def test_layers_of_other_classes_and_with_hooks_stay() -> None:
    wanted, network = made(WithAdapter), made(WithAdapter)
    group_linears(network, x=rows(2))
    assert type(network.blocks[0].b) is Adapted
    assert type(network.blocks[0].c) is nn.Linear
    with torch.inference_mode():
        torch.testing.assert_close(network(rows(5)).logits, wanted(rows(5)).logits, rtol=1e-5, atol=1e-5)


class ReadsWeight(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.a.weight.dtype))


class NeedsDense(Block):
    """Code that is not fit for the strides of a share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b(x).view(-1)
        return x + self.a(x)[..., :WIDTH]


@pytest.mark.parametrize("block", [ReadsWeight, NeedsDense])
def test_code_that_is_not_fit_for_it_keeps_its_layers(block: Callable[[], nn.Module]) -> None:
    wanted, network = made(block), made(block)
    assert group_linears(network, x=rows(2)) == 0
    assert members(network) == []
    with torch.inference_mode():
        torch.testing.assert_close(network(rows(5)).logits, wanted(rows(5)).logits)


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (3, 5), (48, 32), (33, 7), (96, 32)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_are_exact_to_rounding(outputs: int, inputs: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    added = torch.randn(outputs, generator=generator) if bias else None
    packed = packed_product(weight, added)
    if packed is None:
        pytest.skip("this build of torch has no oneDNN")
    for shape in ((0, inputs), (1, inputs), (17, inputs), (2, 3, inputs)):
        x = torch.randn(shape, generator=generator)
        exact = plain_product(weight.double(), None if added is None else added.double())(x.double())
        torch.testing.assert_close(packed(x), exact.float(), rtol=1e-5, atol=1e-5)


def test_a_packed_product_that_answers_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> torch.Tensor:
        x = next(one for one in given if isinstance(one, torch.Tensor))
        return x.new_zeros(*x.shape[:-1], 8)

    weight = torch.ones(8, 4)
    monkeypatch.setattr(NativeProduct, "__call__", wrong)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", wrong)
    assert packed_product(weight, None) is None


def test_the_layers_are_let_go_before_their_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model would be in memory twice while it loads."""
    network = made()
    layers = [weakref.ref(module) for module in network.modules() if isinstance(module, nn.Linear)]
    alive = []

    def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        alive.append(sum(layer() is not None for layer in layers))
        return packed_product(weight, bias)

    monkeypatch.setattr(linear_groups, "packed_product", pack)
    group_linears(network, x=rows(2))
    assert len(layers) == 12
    assert max(alive) <= 1


def test_other_dtypes_keep_their_layers_or_answer_as_they_do() -> None:
    wanted, network = made(dtype=torch.bfloat16), made(dtype=torch.bfloat16)
    group_linears(network, x=rows(2, torch.bfloat16))
    with torch.inference_mode():
        x = rows(9, torch.bfloat16)
        torch.testing.assert_close(network(x).logits, wanted(x).logits, rtol=5e-2, atol=5e-2)
    assert packed_product(torch.ones(4, 4, dtype=torch.float64), None) is None

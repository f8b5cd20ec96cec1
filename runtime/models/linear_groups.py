"""A model's linear layers as the matrix products that they really are.

Siblings that are fed the same tensor (query, key and value; gate and up) become one product, and on CPU every product
gets the layout that is fastest there. Which layers share their input is seen, not read off their names: a forward pass
shows it. Each layer keeps its place in the model and answers as before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from runtime.models.packed_product import Product, packed_product, plain_product
from runtime.native.product import NativeProduct
from runtime.native.weights import Panels

log = logging.getLogger(__name__)

# A joint product may add in another order; in half precision a rounding in an early layer grows on its way.
_TOLERANCE = {torch.float32: 1e-4}
_HALF_TOLERANCE = 5e-2


class LinearGroup:
    """One product for linear layers that share their input; `members` in the order of its outputs.

    Calling it yields all outputs, `[..., sum of the members' outputs]`. panels: the weights, once our own kernel has
    them.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        weights = [linear.weight.data for linear in linears]
        biases = [linear.bias for linear in linears]
        self._weight: torch.Tensor | None = weights[0] if len(linears) == 1 else torch.cat(weights)
        self._bias: torch.Tensor | None = None
        if any(bias is not None for bias in biases):
            lacking = [weight.new_zeros(len(weight)) for weight in weights]
            given = [lack if bias is None else bias.data for bias, lack in zip(biases, lacking, strict=True)]
            self._bias = torch.cat(given)
        self._product: Product = plain_product(self._weight, self._bias)
        self.panels: Panels | None = None
        self._sizes = [len(weight) for weight in weights]
        self.members = [GroupMember(self, linear) for linear in linears]
        if len(linears) > 1:
            for linear, share in zip(linears, torch.split(self._weight, self._sizes), strict=True):
                linear.weight.data = share
        self._input: torch.Tensor | None = None
        self._outputs: dict[GroupMember, torch.Tensor] = {}

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._product(inputs)

    def output(self, member: GroupMember, inputs: torch.Tensor) -> torch.Tensor:
        """A member's share; the product is taken when the first member asks, and each share is given out once."""
        if len(self.members) == 1:
            return self._product(inputs)
        if self._input is not inputs or member not in self._outputs:
            self._input = inputs
            shares = torch.split(self._product(inputs), self._sizes, dim=-1)
            self._outputs = dict(zip(self.members, shares, strict=True))
        found = self._outputs.pop(member)
        if not self._outputs:
            self._input = None
        return found

    def change_product(self, change: Callable[[Product], Product]) -> None:
        """Compute through what `change` makes of the group's product from now on."""
        self._product = change(self._product)

    def pack(self) -> None:
        """Replace the weights by a packed copy where that works."""
        assert self._weight is not None
        packed = packed_product(self._weight, self._bias)
        if packed is not None:
            self._product = packed
            self._weight = None
            self.panels = packed.panels if isinstance(packed, NativeProduct) else None


class GroupMember(nn.Module):
    """Stands where a linear layer stood. It has no weight of its own: that belongs to the group."""

    def __init__(self, group: LinearGroup, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.group.output(self, inputs)


def group_linears(network: nn.Module, **probe: Any) -> int:
    """Join the linear layers of `network` that share their input, in place; returns how many products there are.

    probe: keyword arguments of a forward pass that yields `logits`. On CPU single layers take part too, for their
    layout. Left alone are layers of a class of their own (quantised, adapted), weights that another linear layer
    shares, layers with hooks, and layers that the pass calls not exactly once. When the changed model fails or answers
    otherwise, everything is put back and 0 returned.
    """
    with torch.inference_mode():
        with _recorded_inputs(network) as inputs:
            before = network(**probe).logits
        places: list[tuple[nn.Module, str, nn.Linear]] = []
        groups: list[LinearGroup] = []
        for parent, names in _shared_inputs(network, inputs):
            linears = [getattr(parent, name) for name in names]
            if len(linears) == 1 and linears[0].weight.device.type != "cpu":
                continue
            places += [(parent, name, linear) for name, linear in zip(names, linears, strict=True)]
            groups.append(LinearGroup(linears))
            for name, member in zip(names, groups[-1].members, strict=True):
                setattr(parent, name, member)
        if not _answers(network, probe, before):
            for parent, name, linear in places:
                setattr(parent, name, linear)
            return 0
        # From here on nobody but the groups holds the weights, so that each is freed as soon as it is packed.
        places.clear()
        inputs.clear()
        for group in groups:
            group.pack()
    return len(groups)


def _answers(network: nn.Module, probe: dict[str, Any], wanted: torch.Tensor) -> bool:
    limit = _TOLERANCE.get(wanted.dtype, _HALF_TOLERANCE)
    try:
        got = network(**probe).logits
    except (RuntimeError, AttributeError) as error:
        log.info("linear layers stay as they are: the model's code needs them so (%s)", error)
        return False
    difference = float((got - wanted).float().norm() / wanted.float().norm().clamp_min(1e-6))
    if not difference <= limit:
        log.info("linear layers stay as they are: joined, they change the logits by %.1e (relative)", difference)
    return difference <= limit


@contextmanager
def _recorded_inputs(network: nn.Module) -> Iterator[dict[nn.Module, list[torch.Tensor]]]:
    """Every tensor that each linear layer is given inside the block; kept alive, so that identity means something."""
    found: dict[nn.Module, list[torch.Tensor]] = {}

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        found.setdefault(module, []).extend(args)

    handles = [
        module.register_forward_pre_hook(record)
        for module in network.modules()
        if type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _shared_inputs(
    network: nn.Module, inputs: dict[nn.Module, list[torch.Tensor]]
) -> Iterator[tuple[nn.Module, list[str]]]:
    """Parents and the names of those of their linear layers that got one and the same tensor, as declared."""
    places = Counter(id(child) for parent in network.modules() for child in parent.children())
    owners = Counter(module.weight.data_ptr() for module in network.modules() if isinstance(module, nn.Linear))
    for parent in network.modules():
        shared: dict[tuple[int, torch.dtype, torch.device], list[str]] = {}
        for name, child in parent.named_children():
            given = inputs.get(child, [])
            if not isinstance(child, nn.Linear) or len(given) != 1:
                continue
            if places[id(child)] == 1 and owners[child.weight.data_ptr()] == 1:
                key = (id(given[0]), child.weight.dtype, child.weight.device)
                shared.setdefault(key, []).append(name)
        # Members of the dictionary are consumed while the parent's children change.
        yield from ((parent, names) for names in list(shared.values()))

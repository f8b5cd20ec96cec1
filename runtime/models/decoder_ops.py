"""What the lean forward does between its products, in torch; `runtime.native.decoder` does it in one pass each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis."""

    shape: tuple[int, ...]
    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Activation:
    """An elementwise function; silu: whether it was seen to be `x * sigmoid(x)`."""

    function: Callable[[torch.Tensor], torch.Tensor]
    silu: bool

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype) -> Activation:
        """A module's, looked at over a sample of numbers."""
        sample = torch.linspace(-30, 30, 4001, dtype=dtype)
        silu = dtype == torch.float32 and torch.allclose(module(sample), functional.silu(sample), rtol=1e-5, atol=1e-7)
        return cls(module.forward, silu)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """An RMS norm over single heads; weight `[heads, dim]` of the heads that are turned."""

    weight: torch.Tensor
    eps: float


class DecoderOps(Protocol):
    """The steps between the products of a Llama-like decoder, on `[T, ...]` tensors."""

    def norm(self, hidden: torch.Tensor, norm: RmsNorm) -> torch.Tensor: ...

    def add_norm(self, hidden: torch.Tensor, delta: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        """Add delta to hidden in place, and return the norm of the sum."""
        ...

    def angles(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines `[T, dim]` as `rotate` wants them."""
        ...

    def rotate(
        self, joint: torch.Tensor, heads: int, norm: HeadNorm | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """The first `heads` heads of joint `[T, more, dim]`, normed and turned; may change joint."""
        ...

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """`activation(gate) * up` of `[T, 2 * inner]`."""
        ...


class TorchOps:
    """Any device, dtype and activation."""

    def norm(self, hidden: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        return norm(hidden)

    def add_norm(self, hidden: torch.Tensor, delta: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        hidden += delta
        return norm(hidden)

    def angles(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = sin[:, None].clone()
        turned[..., : turned.shape[-1] // 2].neg_()
        return cos[:, None], turned

    def rotate(
        self, joint: torch.Tensor, heads: int, norm: HeadNorm | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        turning = joint[:, :heads]
        dim = joint.shape[-1]
        if norm is not None:
            turning = functional.rms_norm(turning, (dim,), None, norm.eps).mul_(norm.weight)
        # cos and sin repeat for both halves; the sign of sin's first half is turned already.
        return torch.addcmul(turning * cos, turning.roll(dim // 2, -1), sin)

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation.function(gate).mul_(up)

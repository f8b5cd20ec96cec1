"""What a model on a device asks of an attention back end, and the reasons why one may not serve it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from runtime.attention.interface import AttentionOptions
from runtime.kv.precision import KVFormat, LayerShape

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Needs:
    """All that a choice of back end depends on.

    dtype is that of the queries, kv_format how the pool keeps numbers. capability: a CUDA GPU's compute capability, or
    None. dims: the `(key, value)` head dimensions of the layers. window, softcap, sinks: whether any layer has them.
    """

    device: torch.device
    dtype: torch.dtype
    kv_format: KVFormat
    block_size: int
    capability: tuple[int, int] | None
    dims: frozenset[tuple[int, int]]
    window: bool = False
    softcap: bool = False
    sinks: bool = False

    @classmethod
    def of(
        cls,
        layers: Sequence[LayerShape],
        options: Sequence[AttentionOptions],
        *,
        device: torch.device,
        dtype: torch.dtype,
        kv_format: KVFormat,
        block_size: int,
    ) -> Needs:
        """Those of a model, from what its layers cache and how they attend."""
        return cls(
            device=device,
            dtype=dtype,
            kv_format=kv_format,
            block_size=block_size,
            capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
            dims=frozenset((shape.key_dim, shape.value_dim) for shape in layers),
            window=any(option.window is not None for option in options),
            softcap=any(option.softcap is not None for option in options),
            sinks=any(option.sinks is not None for option in options),
        )


def needs_gpu(needs: Needs, least: tuple[int, int], below: tuple[int, int] = (99, 0)) -> str | None:
    """Why kernels for compute capabilities from `least` to under `below` do not run here; None when they do."""
    if needs.capability is None:
        return f"needs a CUDA GPU, not {needs.device.type}"
    if not least <= needs.capability < below:
        have = ".".join(map(str, needs.capability))
        return f"its kernels are not made for compute capability {have}"
    return None


def needs_half(needs: Needs) -> str | None:
    """Why a kernel that reads a half-precision pool of the queries' dtype does not serve."""
    if needs.dtype not in HALVES:
        return f"takes float16 and bfloat16, not {_name(needs.dtype)}"
    if needs.kv_format != KVFormat.dense(needs.dtype):
        return f"takes a pool of the queries' dtype only, and the pool is {needs.kv_format.name}"
    return None


def needs_one_dim(needs: Needs, most: int) -> str | None:
    """Why a kernel for keys and values of one dimension up to `most`, in steps of 8, does not serve."""
    for key, value in sorted(needs.dims):
        if key != value:
            return f"takes keys and values of one dimension, not {key} and {value}"
        if key > most or key % 8:
            return f"takes head dimensions up to {most} in steps of 8, not {key}"
    return None


def library(module: str) -> Any:
    """The module, or the reason why it does not import, as text."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return f"{module} is not installed"
    except Exception as error:
        return f"{module} does not import: {error}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Attention through our own kernel in C, which reads keys and values where they lie in the pool."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from runtime.attention.cpu_kernel import add_sinks
from runtime.attention.interface import AttentionOptions
from runtime.attention.native_layout import NativeLayout, native_layout
from runtime.attention.needs import Needs
from runtime.attention.proof import disproof
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV
from runtime.native import NativeUnavailable, load_library
from runtime.native.records import kept

_QUERIES = (torch.float32, torch.bfloat16, torch.float16)

_pointer = ctypes.c_void_p


class _Step(ctypes.Structure):
    """`struct attention` of attention.c."""

    _fields_ = (
        *((name, _pointer) for name in ("tasks", "tokens", "positions", "blocks", "merges", "parts")),
        *((name, _pointer) for name in ("part_outs", "part_lses", "scratch")),
        *((name, ctypes.c_int64) for name in ("scratch_bytes", "task_count", "merge_count")),
        *((name, ctypes.c_int32) for name in ("block_size", "kv_heads", "group", "key_dim", "value_dim")),
        *(
            (name, ctypes.c_int32)
            for name in ("window", "threads", "key_kind", "key_bytes", "value_kind", "value_bytes")
        ),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


@dataclass(frozen=True)
class _Prepared:
    """What the layers of a step that attend alike have in common; `kept` owns the memory that `step` points to."""

    step: _Step
    kept: tuple[object, ...]


class NativeAttention:
    """Any head dimensions, windows, softcap, sinks; pools of every precision, computed in float32.

    Raises NativeUnavailable where the kernel cannot be compiled.
    """

    name = "native"

    def __init__(self) -> None:
        library = load_library("attention")
        self._attend = library.attend
        self._attend.argtypes = (_pointer, _pointer, ctypes.c_int64, _pointer, _pointer, _pointer, _pointer)
        self._attend.restype = None
        self._scratch = library.attention_scratch
        self._scratch.argtypes = (ctypes.c_int32,) * 4
        self._scratch.restype = ctypes.c_int64

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        count, heads, key_dim = query.shape
        value_dim = kv.values.shape[-1]
        wide = query.float()
        if wide.stride(2) != 1 or wide.stride(1) != key_dim:
            wide = wide.contiguous()
        kinds = (*kept(kv.keys), *kept(kv.values))
        prepared: _Prepared = plan.derived(
            ("native", options.window, options.scale, options.softcap, heads, kv.keys.shape, value_dim, *kinds),
            lambda: self._prepare(heads // kv.kv_heads, kv, kinds, plan, options),
        )
        out = wide.new_empty(count, heads, value_dim)
        lse = wide.new_empty(count, heads) if options.want_lse or options.sinks is not None else None
        self._attend(
            ctypes.addressof(prepared.step),
            wide.data_ptr(),
            wide.stride(0),
            *(tensor.data_ptr() for tensor in kv.tensors),
            out.data_ptr(),
            None if lse is None else lse.data_ptr(),
        )
        if options.sinks is not None and lse is not None:
            out, lse = add_sinks(out, lse, options.sinks)
        return out.to(query.dtype), lse

    def _prepare(
        self, group: int, kv: LayerKV, kinds: tuple[int, ...], plan: StepPlan, options: AttentionOptions
    ) -> _Prepared:
        threads = torch.get_num_threads()
        key_dim, value_dim = kv.keys.shape[-1], kv.values.shape[-1]
        layout: NativeLayout = plan.derived(
            ("native layout", options.window, kv.kv_heads, group),
            lambda: native_layout(plan, options.window, kv.kv_heads, group, threads),
        )
        each = self._scratch(layout.most_rows, kv.kv_heads, key_dim, value_dim)
        # Rows begin at cache lines, wherever the allocator put the first byte.
        scratch = torch.empty(each * threads + 64, dtype=torch.uint8)
        outs = torch.empty(layout.part_count, kv.kv_heads * group, value_dim, dtype=torch.float32)
        lses = torch.empty(layout.part_count, kv.kv_heads * group, dtype=torch.float32)
        arrays = (layout.tasks, layout.tokens, layout.positions, layout.blocks, layout.merges, layout.parts)
        step = _Step(
            *(array.ctypes.data for array in arrays),
            outs.data_ptr(),
            lses.data_ptr(),
            scratch.data_ptr() + -scratch.data_ptr() % 64,
            each,
            len(layout.tasks),
            len(layout.merges),
            plan.block_size,
            kv.kv_heads,
            group,
            key_dim,
            value_dim,
            options.window or 0,
            threads,
            *kinds,
            options.scale,
            options.softcap or 0.0,
        )
        return _Prepared(step, (layout, outs, lses, scratch))


def native_obstacle(needs: Needs) -> str | None:
    """Why it does not serve; None when it does: on a CPU with a compiler, after it answered as the reference does."""
    if needs.device.type != "cpu":
        return "runs on the CPU only"
    if needs.dtype not in _QUERIES:
        return f"takes float32, bfloat16 and float16, not {needs.dtype}"
    try:
        load_library("attention")
    except NativeUnavailable as why:
        return str(why)
    return disproof(NativeAttention, needs)

"""torch's own `varlen_attn` as a back end: pages of a multiple of 256 in place from 2.13 on, gathered KV before."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from runtime.attention.flash_attention import FA2_PAGE, finish, left_window, longest_query
from runtime.attention.gathered import gather
from runtime.attention.interface import AttentionOptions
from runtime.attention.needs import Needs, library, needs_gpu, needs_half, needs_one_dim
from runtime.attention.paged_layout import paged_layout
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV

_MODULE = "torch.nn.attention.varlen"
# Flash attention runs under it, which reads (-1, 0) as causal without a window.
_CAUSAL = (-1, 0)


class VarlenAttention:
    """What this torch's `varlen_attn` takes is read from its signature."""

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        self._attend: Any = varlen_attn
        self._lse = AuxRequest(lse=True)
        taken = inspect.signature(varlen_attn).parameters
        self._pages = takes_pages(taken)
        self._groups = "enable_gqa" in taken

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layout = paged_layout(plan)
        wants_lse = options.want_lse or options.sinks is not None
        group = query.shape[1] // kv.kv_heads
        more: dict[str, Any] = {}
        if self._pages and kv.block_size % FA2_PAGE == 0:
            keys, values = kv.keys, kv.values
            more |= {"seqused_k": layout.kv_lens, "block_table": layout.table}
        else:
            keys, values = gather(kv, plan)
        if self._groups:
            more["enable_gqa"] = group > 1
        elif group > 1:
            keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (keys, values))
        if wants_lse:
            more["return_aux"] = self._lse
        found = self._attend(
            query.contiguous(),
            keys,
            values,
            layout.cu_q,
            layout.cu_kv,
            longest_query(layout.max_q, wants_lse),
            layout.max_kv,
            scale=options.scale,
            window_size=_CAUSAL if options.window is None else left_window(options),
            **more,
        )
        return finish(found, query, options, wants_lse)


def takes_pages(parameters: Any) -> bool:
    """Whether a signature has what paged KV needs."""
    return {"block_table", "seqused_k"} <= set(parameters)


def varlen_obstacle(needs: Needs) -> str | None:
    """Why it does not serve; None when it does."""
    unfit = needs_gpu(needs, (8, 0)) or needs_half(needs) or needs_one_dim(needs, 256)
    if unfit is not None:
        return unfit
    found = library(_MODULE)
    if isinstance(found, str):
        return found
    if not {"scale", "window_size"} <= inspect.signature(found.varlen_attn).parameters.keys():
        return "this torch's varlen_attn takes no scale or no window"
    return "has no softcap" if needs.softcap else None


def varlen_reads_pages() -> bool:
    """Whether this torch's function takes a block table."""
    found = library(_MODULE)
    return not isinstance(found, str) and takes_pages(inspect.signature(found.varlen_attn).parameters)

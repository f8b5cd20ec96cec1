"""The flash-attn libraries as back ends: version 3 for Hopper and version 2 from Ampere on.

Both are called by their documented signatures. Their kernels need a GPU; what is tested without one is that every
argument means what the library says it means.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from runtime.attention.cpu_kernel import add_sinks
from runtime.attention.gathered import gather
from runtime.attention.interface import AttentionOptions
from runtime.attention.needs import Needs, library, needs_gpu, needs_half, needs_one_dim
from runtime.attention.paged_layout import PagedLayout, paged_layout
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV

# The page size that version 2 reads in place: its kernels move tiles of up to so many keys.
FA2_PAGE = 256


class FlashAttention3:
    """One call of `flash_attn_with_kvcache` for chunks and decode rows alike, pages of any size read in place."""

    name = "fa3"

    def __init__(self) -> None:
        from flash_attn_interface import flash_attn_with_kvcache

        self._call = flash_attn_with_kvcache

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.attend(query, kv, plan, paged_layout(plan), options)

    def attend(
        self,
        query: torch.Tensor,
        kv: LayerKV,
        plan: StepPlan,
        layout: PagedLayout,
        options: AttentionOptions,
        *,
        causal: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As PagedKernel says."""
        wants_lse = options.want_lse or options.sinks is not None
        found = self._call(
            query.contiguous(),
            kv.keys,
            kv.values,
            cache_seqlens=layout.kv_lens,
            page_table=layout.table,
            cu_seqlens_q=layout.cu_q,
            max_seqlen_q=layout.max_q,
            softmax_scale=options.scale,
            causal=causal,
            window_size=left_window(options),
            softcap=options.softcap or 0.0,
            return_softmax_lse=wants_lse,
        )
        return finish(found, query, options, wants_lse)


def fa3_obstacle(needs: Needs) -> str | None:
    """Why version 3 does not serve; None when it does."""
    unfit = needs_gpu(needs, (9, 0), (10, 0)) or needs_half(needs) or needs_one_dim(needs, 256)
    if unfit is not None:
        return unfit
    found = library("flash_attn_interface")
    if isinstance(found, str):
        return found
    attend = getattr(found, "flash_attn_with_kvcache", None)
    if attend is None or not {"page_table", "cu_seqlens_q"} <= inspect.signature(attend).parameters.keys():
        return "its flash_attn_with_kvcache takes no page_table or no cu_seqlens_q"
    built = getattr(library("flash_attn_config"), "CONFIG", {}).get("build_flags", {})
    if needs.softcap and built.get("FLASHATTENTION_DISABLE_SOFTCAP", False):
        return "this build of it has no softcap"
    if needs.dtype == torch.float16 and built.get("FLASHATTENTION_DISABLE_FP16", False):
        return "this build of it has no float16"
    return None


class FlashAttention2:
    """Pages of a multiple of 256 are read in place; others are gathered first, which costs one more copy of the KV."""

    name = "fa2"

    def __init__(self) -> None:
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        self._varlen = flash_attn_varlen_func
        self._decode = flash_attn_with_kvcache

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layout = paged_layout(plan)
        wants_lse = options.want_lse or options.sinks is not None
        in_place = kv.block_size % FA2_PAGE == 0
        common: dict[str, Any] = {
            "softmax_scale": options.scale,
            "causal": True,
            "window_size": left_window(options),
            "softcap": options.softcap or 0.0,
        }
        if in_place and layout.max_q == 1:
            # The one that splits long KV.
            found = self._decode(
                query[:, None],
                kv.keys,
                kv.values,
                cache_seqlens=layout.kv_lens,
                block_table=layout.table,
                return_softmax_lse=wants_lse,
                **common,
            )
            packed = (found[0][:, 0], found[1][:, :, 0].transpose(0, 1)) if wants_lse else found[:, 0]
            return finish(packed, query, options, wants_lse)
        keys, values = (kv.keys, kv.values) if in_place else gather(kv, plan)
        found = self._varlen(
            query,
            keys,
            values,
            cu_seqlens_q=layout.cu_q,
            cu_seqlens_k=layout.cu_kv,
            max_seqlen_q=longest_query(layout.max_q, wants_lse),
            max_seqlen_k=layout.max_kv,
            return_attn_probs=wants_lse,
            block_table=layout.table if in_place else None,
            **common,
        )
        return finish(found, query, options, wants_lse)


def fa2_obstacle(needs: Needs) -> str | None:
    """Why version 2 does not serve; None when it does."""
    unfit = needs_gpu(needs, (8, 0)) or needs_half(needs) or needs_one_dim(needs, 256)
    if unfit is not None:
        return unfit
    found = library("flash_attn")
    if isinstance(found, str):
        return found
    varlen = getattr(found, "flash_attn_varlen_func", None)
    if varlen is None or not {"block_table", "softcap"} <= inspect.signature(varlen).parameters.keys():
        return "its flash_attn_varlen_func takes no block_table or no softcap: 2.6 or later is needed"
    return None


def left_window(options: AttentionOptions) -> tuple[int, int]:
    """A window as these libraries count it: keys before the query's own; -1 for all."""
    return (options.window - 1 if options.window is not None else -1, 0 if options.window is not None else -1)


def longest_query(max_q: int, wants_lse: bool) -> int:
    """The bound on query lengths to state.

    At a bound of 1 version 2 turns query groups into rows and returns their log-sum-exp in another order than it says.
    """
    return max(max_q, 2) if wants_lse else max_q


def finish(
    found: Any, query: torch.Tensor, options: AttentionOptions, wants_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output `[T, heads, dim]` and log-sum-exp `[T, heads]`, sinks counted in, of a call that returned `[heads, T]`."""
    if not wants_lse:
        return found, None
    out, lse = found[0], found[1]
    if lse.shape != (query.shape[1], query.shape[0]):
        raise RuntimeError(f"the log-sum-exp has shape {tuple(lse.shape)}, not heads x tokens")
    lse = lse.transpose(0, 1)
    return (out, lse) if options.sinks is None else add_sinks(out, lse, options.sinks)

"""Stand-ins for the GPU attention libraries: the signatures that they document, every argument checked, the answer
computed plainly from the arguments alone.

Nothing here shows that a real kernel works. It shows that what a back end hands over means, by the library's own
documentation, the attention that was asked for.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from runtime.attention.interface import AttentionOptions
from runtime.attention.paged_layout import PagedLayout, paged_layout
from runtime.attention.reference import attend_row
from runtime.execution.batch import Row, StepPlan
from runtime.kv.kv_pool import LayerKV

Keys = list[tuple[torch.Tensor, torch.Tensor]]


def check_lengths(cu: torch.Tensor, total: int, longest: int) -> list[int]:
    assert cu.dtype == torch.int32
    assert cu.dim() == 1
    assert cu.is_contiguous()
    ends = cu.tolist()
    assert ends[0] == 0
    assert ends[-1] == total
    lengths = np.diff(ends).tolist()
    assert min(lengths) >= 0
    assert max(lengths) <= longest
    return list(lengths)


def check_window(window: tuple[int, int], causal: bool) -> int | None:
    left, right = window
    assert causal or right == 0
    assert left >= -1
    assert right in (-1, 0)
    return left + 1 if left >= 0 else None


def paged(
    keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, page_multiple: int
) -> Keys:
    """Each row's keys and values out of the pages that its table names."""
    pages, size = keys.shape[:2]
    assert size % page_multiple == 0
    assert values.shape[:3] == keys.shape[:3]
    assert keys.stride(-1) == values.stride(-1) == 1
    for tensor in (table, lengths):
        assert tensor.dtype == torch.int32
        assert tensor.stride(-1) == 1
    assert table.shape[0] == lengths.shape[0]
    # A kernel may prefetch what the table says behind a row's length: every entry must be a page.
    assert table.min() >= 0
    assert table.max() < pages
    assert int(lengths.max()) <= table.shape[1] * size
    found = []
    for row, length in zip(table.long(), lengths.tolist(), strict=True):
        slots = (row[:, None] * size + torch.arange(size)).ravel()[:length]
        found.append((keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots]))
    return found


def packed(keys: torch.Tensor, values: torch.Tensor, cu: torch.Tensor, longest: int) -> Keys:
    lengths = check_lengths(cu, keys.shape[0], longest)
    return list(zip(torch.split(keys, lengths), torch.split(values, lengths), strict=True))


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """One row: output `[T, heads, dim]` and log-sum-exp `[T, heads]`, float32; causal from the last query and key."""
    seen = len(keys)
    if seen == 0 or len(query) == 0:
        return torch.zeros(*query.shape[:2], values.shape[-1]), torch.full(query.shape[:2], float("-inf"))
    pieces = [query] if causal else list(query.split(1))
    nobody = np.empty(0, np.int32)
    rows = [Row(0, len(piece), seen - len(piece), seen, nobody) for piece in pieces]
    assert rows[0].start >= 0
    found = [
        attend_row(piece.float(), keys.float(), values.float(), row, options)
        for piece, row in zip(pieces, rows, strict=True)
    ]
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])


class PagedReference:
    """A kernel in plain steps that reads nothing but what paged kernels are given."""

    name = "paged-reference"

    def __init__(self) -> None:
        self.calls: list[tuple[bool, list[int], list[int]]] = []

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor]:
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
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_lens = check_lengths(layout.cu_q, query.shape[0], layout.max_q)
        assert q_lens == layout.q_lens.tolist()
        self.calls.append((causal, q_lens, layout.kv_lens.tolist()))
        found = paged(kv.keys, kv.values, layout.table, layout.kv_lens, 1)
        outs = [attend(one, k, v, options, causal) for one, (k, v) in zip(query.split(q_lens), found, strict=True)]
        return torch.cat([out for out, _ in outs]).to(query.dtype), torch.cat([lse for _, lse in outs])


def compute(
    query: torch.Tensor,
    q_lens: list[int],
    kv: Keys,
    scale: float,
    window: int | None,
    softcap: float,
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[T, heads, dim]` and log-sum-exp `[heads, T]`."""
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert query.shape[-1] % 8 == 0
    assert query.shape[-1] <= 256
    assert query.stride(-1) == 1
    options = AttentionOptions(scale, window, softcap if softcap > 0 else None)
    outs, lses = [], []
    for one, (keys, values) in zip(torch.split(query, q_lens), kv, strict=True):
        assert keys.dtype == values.dtype == query.dtype
        assert keys.shape[-1] == values.shape[-1] == query.shape[-1]
        assert query.shape[1] % keys.shape[1] == 0
        out, lse = attend(one, keys, values, options, causal)
        outs.append(out.to(query.dtype))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses).transpose(0, 1).contiguous()


def flash_attn_3() -> ModuleType:
    """`flash_attn_interface`, as FlashAttention-3 documents it."""
    module = ModuleType("flash_attn_interface")

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: None = None,
        v: None = None,
        qv: None = None,
        rotary_cos: None = None,
        rotary_sin: None = None,
        cache_seqlens: Any = None,
        cache_batch_idx: None = None,
        cache_leftpad: None = None,
        page_table: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k_new: None = None,
        max_seqlen_q: Any = None,
        rotary_seqlens: None = None,
        q_descale: None = None,
        k_descale: None = None,
        v_descale: None = None,
        softmax_scale: Any = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0,
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        scheduler_metadata: None = None,
        num_splits: int = 0,
        pack_gqa: None = None,
        sm_margin: int = 0,
        return_softmax_lse: bool = False,
    ) -> Any:
        window = check_window(window_size, causal) if window_size != (-1, -1) else None
        q_lens = check_lengths(cu_seqlens_q, q.shape[0], max_seqlen_q)
        kv = paged(k_cache, v_cache, page_table, cache_seqlens, 1)
        out, lse = compute(q, q_lens, kv, softmax_scale, window, softcap, causal)
        # The library returns the buffers of its splits behind the two.
        return (out, lse, None, None) if return_softmax_lse else out

    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    return module


def flash_attn_2() -> ModuleType:
    """`flash_attn`, as version 2.8 documents it."""
    module = ModuleType("flash_attn")
    module.calls = []  # type: ignore[attr-defined]

    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: Any = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Any = None,
    ) -> Any:
        module.calls.append("varlen" if block_table is None else "varlen-paged")  # type: ignore[attr-defined]
        assert causal
        assert dropout_p == 0.0
        q_lens = check_lengths(cu_seqlens_q, q.shape[0], max_seqlen_q)
        if block_table is None:
            kv = packed(k, v, cu_seqlens_k, max_seqlen_k)
        else:
            lengths = cu_seqlens_k.diff().to(torch.int32)
            assert int(lengths.max()) <= max_seqlen_k
            kv = paged(k, v, block_table, lengths, 256)
        out, lse = compute(q, q_lens, kv, softmax_scale, check_window(window_size, causal), softcap)
        if max_seqlen_q == 1 and q.shape[1] > k.shape[-2]:
            # With groups as rows the values come group by group within a head's row, whatever the shape says.
            group = q.shape[1] // k.shape[-2]
            lse = lse.view(-1, group, q.shape[0]).transpose(1, 2).reshape(lse.shape)
        return (out, lse, None) if return_attn_probs else out

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: None = None,
        v: None = None,
        rotary_cos: None = None,
        rotary_sin: None = None,
        cache_seqlens: Any = None,
        cache_batch_idx: None = None,
        cache_leftpad: None = None,
        block_table: Any = None,
        softmax_scale: Any = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Any:
        module.calls.append("decode")  # type: ignore[attr-defined]
        assert causal
        batch, length, heads, dim = q.shape
        kv = paged(k_cache, v_cache, block_table, cache_seqlens, 256)
        window = check_window(window_size, causal)
        out, lse = compute(q.reshape(-1, heads, dim), [length] * batch, kv, softmax_scale, window, softcap)
        out = out.view(batch, length, heads, dim)
        return (out, lse.view(heads, batch, length).transpose(0, 1)) if return_softmax_lse else out

    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    return module


class AuxRequest(NamedTuple):
    lse: bool = False


def varlen_2_11(calls: list[str]) -> Any:
    """`torch.nn.attention.varlen.varlen_attn` of torch 2.11: no pages, as many KV heads as query heads."""

    def varlen_attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        return_aux: AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Any:
        calls.append("packed")
        assert query.shape[1] == key.shape[1]
        q_lens = check_lengths(cu_seq_q, query.shape[0], max_q)
        kv = packed(key, value, cu_seq_k, max_k)
        assert scale is not None
        # (-1, 0) is causal here, (-1, -1) sees everything.
        assert window_size[1] == 0
        out, lse = compute(query, q_lens, kv, scale, check_window(window_size, False), 0.0)
        return (out, lse) if return_aux is not None and return_aux.lse else out

    return varlen_attn


def varlen_2_13(calls: list[str]) -> Any:
    """The same of torch 2.13, which has block tables and grouped queries."""
    inner = varlen_2_11([])

    def varlen_attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux: AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        num_splits: int | None = None,
    ) -> Any:
        group = query.shape[1] // key.shape[-2]
        assert enable_gqa or group == 1
        if block_table is None:
            calls.append("packed")
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
            return inner(
                query, key, value, cu_seq_q, cu_seq_k, max_q, max_k,
                return_aux=return_aux, scale=scale, window_size=window_size,
            )  # fmt: skip
        calls.append("paged")
        assert seqused_k is not None
        assert int(seqused_k.max()) <= max_k
        kv = paged(key, value, block_table, seqused_k, 256)
        assert scale is not None
        assert window_size[1] == 0
        q_lens = check_lengths(cu_seq_q, query.shape[0], max_q)
        out, lse = compute(query, q_lens, kv, scale, check_window(window_size, False), 0.0)
        return (out, lse) if return_aux is not None and return_aux.lse else out

    return varlen_attn


def same_signature(stand_in: Any, real: Any) -> bool:
    """Whether the names of the parameters and which of them are keywords agree."""
    first, second = (
        [(name, p.kind) for name, p in inspect.signature(function).parameters.items()] for function in (stand_in, real)
    )
    return first == second

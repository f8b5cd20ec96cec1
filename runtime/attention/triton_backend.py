"""Our Triton kernel as a back end: which tiles a step is cut into, how far KV is split, and the launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from runtime.attention.interface import AttentionOptions
from runtime.attention.needs import Needs, library, needs_gpu
from runtime.attention.paged_layout import PagedLayout, paged_layout
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV
from runtime.kv.packed_view import PackedView

# Rows of the matrix product that the narrowest tensor-core instruction takes.
MIN_ROWS = 16
# Rows whose queries fit into so many lanes are one tile each, and their KV may be split.
SHORT_ROWS = 64
# A part of split KV shorter than this costs more to merge than it gains.
MIN_PART = 256
# Each is a kernel to compile.
SPLITS = (1, 4, 16, 32)


@dataclass(frozen=True)
class Tiles:
    """Tiles of one shape; int32 tensors on the device.

    For each tile its row, the first query that it holds of it, and where that query is in the packed batch. `numbers`
    is where it is among the queries of these tiles alone, and `tokens` leads from those back to the batch.
    """

    rows: torch.Tensor
    firsts: torch.Tensor
    packed: torch.Tensor
    numbers: torch.Tensor
    tokens: torch.Tensor
    block_m: int

    @property
    def count(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True)
class TileWork:
    """A step's rows as tiles: `short` rows, one tile each, whose KV may be split, and `long` ones."""

    short: Tiles | None
    long: Tiles | None


class TritonAttention:
    """The paged Triton kernel. splits: parts that the KV of short rows is cut into; None goes by the device's size."""

    name = "triton"

    def __init__(self, splits: int | None = None) -> None:
        self._splits = splits

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
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As PagedKernel says."""
        group = query.shape[1] // kv.kv_heads
        work = plan.derived(("tiles", id(layout), group), lambda: cut(layout, plan, group, long_rows(query, kv)))
        value_dim = kv.values.shape[-1]
        out = query.new_empty(query.shape[0], query.shape[1], value_dim)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        for tiles in (work.long, work.short):
            if tiles is None:
                continue
            splits = 1
            if tiles is work.short:
                splits = self._splits or split_count(tiles.count * kv.kv_heads, layout.max_kv, query.device)
            if splits == 1:
                _attend(query, kv, layout, tiles, tiles.packed, options, causal, out[None], lse[None])
            else:
                count = len(tiles.tokens)
                parts = out.new_empty(splits, count, *out.shape[1:], dtype=torch.float32)
                part_lses = lse.new_empty(splits, count, lse.shape[1])
                _attend(query, kv, layout, tiles, tiles.numbers, options, causal, parts, part_lses)
                _merge(parts, part_lses, tiles.tokens, out, lse)
        return out, lse


def cut(layout: PagedLayout, plan: StepPlan, group: int, block_m: int) -> TileWork:
    """The tiles of a step whose query groups have `group` heads; `block_m` lanes in a tile of a long row."""
    q_lens = layout.q_lens
    starts = np.cumsum(q_lens) - q_lens
    short = np.flatnonzero(q_lens * group <= max(SHORT_ROWS, group))
    long = np.flatnonzero(q_lens * group > max(SHORT_ROWS, group))
    made: list[Tiles | None] = [None, None]
    if len(short):
        lens = q_lens[short]
        tokens = np.concatenate([np.arange(s, s + n) for s, n in zip(starts[short], lens, strict=True)])
        # Two sizes only: each is a kernel to compile.
        lanes = MIN_ROWS if int(lens.max()) * group <= MIN_ROWS else max(SHORT_ROWS, _power_of_two(group))
        made[0] = _tiles(
            plan, short, np.zeros_like(short), starts[short], np.cumsum(lens) - lens, tokens, block_m=lanes
        )
    if len(long):
        per_tile = block_m // group
        counts = -(-q_lens[long] // per_tile)
        rows = np.repeat(long, counts)
        firsts = np.concatenate([np.arange(n) for n in counts]) * per_tile
        made[1] = _tiles(plan, rows, firsts, starts[rows] + firsts, firsts, np.empty(0), block_m=block_m)
    return TileWork(*made)


def _tiles(plan: StepPlan, *arrays: np.ndarray, block_m: int) -> Tiles:
    """arrays: rows, firsts, packed and numbers, one a tile, and tokens."""
    together = plan.to_device(np.concatenate(arrays).astype(np.int32))
    rows, firsts, packed, numbers, tokens = torch.split(together, [len(array) for array in arrays])
    return Tiles(rows, firsts, packed, numbers, tokens, block_m)


def long_rows(query: torch.Tensor, kv: LayerKV) -> int:
    """Lanes in a tile of a long row."""
    wide = max(query.shape[-1], kv.values.shape[-1]) > 128 or query.dtype == torch.float32
    return max(64 if wide else 128, _power_of_two(query.shape[1] // kv.kv_heads))


def split_count(programs: int, max_kv: int, device: torch.device) -> int:
    """Parts to cut KV into so that `programs` tiles become up to two for each multiprocessor; one of SPLITS."""
    most = min(2 * _multiprocessors(device) // max(programs, 1), max_kv // MIN_PART)
    return max(splits for splits in SPLITS if splits <= max(most, 1))


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _attend(
    query: torch.Tensor,
    kv: LayerKV,
    layout: PagedLayout,
    tiles: Tiles,
    targets: torch.Tensor,
    options: AttentionOptions,
    causal: bool,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Write out `[splits, n, heads, value_dim]` and lse float32 `[splits, n, heads]`, each tile from its target on."""
    from runtime.attention import triton_kernel

    key_dim, value_dim = query.shape[-1], kv.values.shape[-1]
    key_pad, value_pad = (max(16, _power_of_two(dim)) for dim in (key_dim, value_dim))
    full = query.dtype == torch.float32
    if query.stride(-1) != 1:
        query = query.contiguous()
    with _on(query.device):
        triton_kernel.attend[(tiles.count, kv.kv_heads, out.shape[0])](
            query,
            *kv.tensors,
            out,
            lse,
            options.sinks if options.sinks is not None else query,
            layout.table,
            layout.cu_q,
            layout.kv_lens,
            tiles.rows,
            tiles.firsts,
            targets,
            options.scale,
            options.softcap or 0.0,
            options.window or 0,
            *query.stride()[:2],
            *kv.tensors[0].stride()[:3],
            *kv.tensors[1].stride()[:3],
            *out.stride()[:3],
            *lse.stride()[:2],
            layout.table.stride(0),
            PAGE=kv.block_size,
            GROUP=query.shape[1] // kv.kv_heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            KEY_PAD=key_pad,
            VALUE_PAD=value_pad,
            BLOCK_M=tiles.block_m,
            BLOCK_N=block_n(max(key_pad, value_pad), full),
            SPLITS=out.shape[0],
            HAS_WINDOW=options.window is not None,
            HAS_SOFTCAP=options.softcap is not None,
            HAS_SINKS=options.sinks is not None,
            CAUSAL=causal,
            # Tensor cores would round float32 to 10 bits of mantissa.
            PRECISION="ieee" if full else "tf32",
            KEY_KIND=_kind(kv.keys),
            KEY_BYTES=kv.tensors[0].shape[-1],
            VALUE_KIND=_kind(kv.values),
            VALUE_BYTES=kv.tensors[1].shape[-1],
            num_warps=8 if tiles.block_m >= 128 else 4,
            num_stages=2,
        )


def _kind(half: torch.Tensor | PackedView) -> int:
    """How the kernel reads it; 0 is as it is."""
    return half.packing.code if isinstance(half, PackedView) else 0


def _merge(
    parts: torch.Tensor, part_lses: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    from runtime.attention import triton_kernel

    splits, count, heads, value_dim = parts.shape
    with _on(out.device):
        triton_kernel.merge[(count, heads)](
            parts,
            part_lses,
            out,
            lse,
            tokens,
            *parts.stride()[:3],
            *part_lses.stride()[:2],
            *out.stride()[:2],
            lse.stride(0),
            VALUE_DIM=value_dim,
            VALUE_PAD=_power_of_two(value_dim),
            SPLITS=splits,
            SPLITS_PAD=_power_of_two(splits),
        )


def block_n(dim: int, full: bool) -> int:
    """Keys that a tile takes at a time, for padded head dimensions up to `dim`; `full` is float32."""
    return 32 if dim > 128 or full else 64


def _on(device: torch.device) -> torch.cuda.device:
    """Triton launches on the current device; -1 leaves it alone."""
    return torch.cuda.device(device.index if device.type == "cuda" and device.index is not None else -1)


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def triton_obstacle(needs: Needs) -> str | None:
    """Why the kernel does not serve; None when it does."""
    unfit = needs_gpu(needs, (8, 0))
    if unfit is not None:
        return unfit
    found = library("triton")
    return found if isinstance(found, str) else None

"""Paged attention in Triton: any page size, grouped queries, windows, softcap, sinks, split KV.

The queries of all heads that share a KV head are the rows of one matrix product, so a page of keys is read once for the
whole group. The softmax is computed online, block by block (Milakov and Gimelshein 2018; Dao 2022), in base two. Packed
keys and values are unpacked in registers. Where few rows would leave the device idle their KV is split, and the parts
are merged by their log-sum-exp (Dao 2023, "Flash-Decoding").
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


# Triton compiles a kernel anew for arguments that are or are not multiples of 16. These change from step to step, and
# the tensors among them are views of one buffer that begin anywhere.
_LAYOUT = ["table", "cu_q", "kv_lens", "tile_rows", "tile_firsts", "tile_outs", "tokens"]
_SIZES = ["window", "out_split", "lse_split", "part_split", "table_row"]


@triton.jit
def half_at(kept, place, mask):
    """The float16 numbers whose two bytes begin at `place`, as float32."""
    low = tl.load(kept + place, mask=mask, other=0).to(tl.uint16)
    high = tl.load(kept + place + 1, mask=mask, other=0).to(tl.uint16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def read(kept, head, dim, there, inside, KIND: tl.constexpr, DIM: tl.constexpr, BYTES: tl.constexpr):
    """Numbers `dim` of the heads of tokens that begin at `head`, where `inside`; `there` says which tokens are.

    KIND 0 is numbers as they are. Otherwise heads are records of BYTES bytes, packed as runtime/kv/packing.py says.
    """
    if KIND == 0:
        found = tl.load(kept + head + dim, mask=inside, other=0.0)
    else:
        HALF: tl.constexpr = (DIM + 1) // 2
        scale = half_at(kept, head + BYTES - (4 if KIND == 6 else 2), there)
        if KIND == 3:
            code = tl.load(kept + head + dim, mask=inside, other=0)
            found = code.to(tl.int8, bitcast=True).to(tl.float32) * scale
        elif KIND == 4:
            code = tl.load(kept + head + dim, mask=inside, other=0).to(tl.uint16)
            # E4M3's exponent has a bias of 7 and float16's one of 15.
            bits = ((code & 0x7F) << 7) | ((code & 0x80) << 8)
            found = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0 * scale
        else:
            pair = tl.load(kept + head + dim % HALF, mask=inside, other=0).to(tl.int32)
            code = tl.where(dim < HALF, pair & 15, pair >> 4)
            if KIND == 6:
                fifth = tl.load(kept + head + HALF + dim // 8, mask=inside, other=0).to(tl.int32)
                code = code | (((fifth >> (dim % 8)) & 1) << 4)
                found = code.to(tl.float32) * scale + half_at(kept, head + BYTES - 2, there)
            else:
                found = (code.to(tl.float32) - 7.5) * scale
    return found


@triton.jit(do_not_specialize=_LAYOUT + _SIZES)
def attend(
    query,
    keys,
    values,
    out,
    lse,
    sinks,
    table,
    cu_q,
    kv_lens,
    tile_rows,
    tile_firsts,
    tile_outs,
    scale,
    softcap,
    window,
    query_token,
    query_head,
    key_block,
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    out_split,
    out_token,
    out_head,
    lse_split,
    lse_token,
    table_row,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    KEY_KIND: tl.constexpr,
    KEY_BYTES: tl.constexpr,
    VALUE_KIND: tl.constexpr,
    VALUE_BYTES: tl.constexpr,
):
    """One tile: `BLOCK_M // GROUP` queries of one row, all heads of one KV head, one part of the row's KV.

    Grid `(tiles, kv_heads, SPLITS)`. Tile i holds the queries of row tile_rows[i] from its query tile_firsts[i] on,
    and writes them to out from index tile_outs[i] on. out is `[SPLITS, n, heads, VALUE_DIM]` and lse
    `[SPLITS, n, heads]` by strides; a part without keys has the output 0 and the log-sum-exp minus infinity, as has a
    row whose KV length is 0. CAUSAL says that a row's queries are the last of its positions; otherwise they see all.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(tile_rows + tile)
    first = tl.load(tile_firsts + tile)
    out_first = tl.load(tile_outs + tile)
    q_begin = tl.load(cu_q + row)
    q_len = tl.load(cu_q + row + 1) - q_begin
    kv_len = tl.load(kv_lens + row)
    start = kv_len - q_len if CAUSAL else kv_len

    lane = tl.arange(0, BLOCK_M)
    in_row = first + lane // GROUP
    head = kv_head * GROUP + lane % GROUP
    live = (in_row < q_len) & (lane < BLOCK_M // GROUP * GROUP)
    token = (q_begin + in_row).to(tl.int64)
    target = (out_first + lane // GROUP).to(tl.int64)
    position = start + in_row

    key_dims = tl.arange(0, KEY_PAD)
    value_dims = tl.arange(0, VALUE_PAD)
    q = tl.load(
        query + token[:, None] * query_token + head.to(tl.int64)[:, None] * query_head + key_dims[None, :],
        mask=live[:, None] & (key_dims[None, :] < KEY_DIM),
        other=0.0,
    )

    last = tl.minimum(first + BLOCK_M // GROUP, q_len)
    end = tl.where(kv_len > 0, start + last, 0) if CAUSAL else kv_len
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(start + first - window + 1, 0)
    share = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), SPLITS) * BLOCK_N
    begin += split * share
    end = tl.minimum(begin + share, end)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        # A sink is a score without a value: it opens the sum of the first part, and the online softmax does the rest.
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * _LOG2E
        peak = tl.where(split == 0, sink, peak)
        total = tl.where(split == 0, 1.0, total)
    weighted = tl.zeros([BLOCK_M, VALUE_PAD], tl.float32)

    for at in range(begin, end, BLOCK_N):
        past = at + tl.arange(0, BLOCK_N)
        inside = past < end
        block = tl.load(table + row * table_row + past // PAGE, mask=inside, other=0).to(tl.int64)
        slot = past % PAGE
        k = read(
            keys,
            (block * key_block + slot * key_slot + kv_head * key_head)[None, :],
            key_dims[:, None],
            inside[None, :],
            inside[None, :] & (key_dims[:, None] < KEY_DIM),
            KEY_KIND,
            KEY_DIM,
            KEY_BYTES,
        )
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2x) + 1), which neither end overflows.
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * _LOG2E / softcap)) + 1.0))
        seen = inside[None, :] & (past[None, :] <= position[:, None])
        if HAS_WINDOW:
            seen = seen & (past[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * _LOG2E, float("-inf"))
        risen = tl.maximum(peak, tl.max(scores, 1))
        # A lane that has seen nothing yet has a peak of minus infinity, from which nothing may be subtracted.
        origin = tl.where(risen == float("-inf"), 0.0, risen)
        weights = tl.exp2(scores - origin[:, None])
        fade = tl.exp2(peak - origin)
        total = total * fade + tl.sum(weights, 1)
        v = read(
            values,
            (block * value_block + slot * value_slot + kv_head * value_head)[:, None],
            value_dims[None, :],
            inside[:, None],
            inside[:, None] & (value_dims[None, :] < VALUE_DIM),
            VALUE_KIND,
            VALUE_DIM,
            VALUE_BYTES,
        )
        weighted = weighted * fade[:, None]
        weighted += tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision=PRECISION)
        peak = risen

    some = total > 0.0
    divisor = tl.where(some, total, 1.0)
    tl.store(
        out + split * out_split + target[:, None] * out_token + head[:, None] * out_head + value_dims[None, :],
        (weighted / divisor[:, None]).to(out.dtype.element_ty),
        mask=live[:, None] & (value_dims[None, :] < VALUE_DIM),
    )
    tl.store(
        lse + split * lse_split + target * lse_token + head,
        tl.where(some, (peak + tl.log2(divisor)) * _LN2, float("-inf")),
        mask=live,
    )


@triton.jit(do_not_specialize=_LAYOUT + _SIZES)
def merge(
    parts,
    part_lses,
    out,
    lse,
    tokens,
    part_split,
    part_token,
    part_head,
    lse_split,
    lse_token,
    out_token,
    out_head,
    whole_lse_token,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    """Join the parts of one query of one head by their log-sum-exp. Grid `(tokens to join, heads)`.

    parts float32 `[SPLITS, n, heads, VALUE_DIM]`, part_lses `[SPLITS, n, heads]`; tokens int32 `[n]`, where each goes
    in out `[T, heads, VALUE_DIM]` and lse `[T, heads]`.
    """
    index = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + index).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS_PAD)
    dims = tl.arange(0, VALUE_PAD)
    lses = tl.load(part_lses + split * lse_split + index * lse_token + head, mask=split < SPLITS, other=float("-inf"))
    peak = tl.max(lses, 0)
    origin = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2((lses - origin) * _LOG2E)
    total = tl.sum(weights, 0)
    divisor = tl.where(total > 0.0, total, 1.0)
    found = tl.load(
        parts + split[:, None] * part_split + index * part_token + head * part_head + dims[None, :],
        mask=(split[:, None] < SPLITS) & (dims[None, :] < VALUE_DIM),
        other=0.0,
    )
    joined = tl.sum(found * (weights / divisor)[:, None], 0)
    tl.store(out + token * out_token + head * out_head + dims, joined.to(out.dtype.element_ty), mask=dims < VALUE_DIM)
    tl.store(
        lse + token * whole_lse_token + head,
        tl.where(total > 0.0, origin + tl.log2(divisor) * _LN2, float("-inf")),
    )

"""The pool's books: shapes, bytes, copies."""

from __future__ import annotations

import math

import pytest
import torch

from radix import Copy
from runtime.errors import InvalidRequest
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import LayerShape

BLOCK = 4
SHAPES = [LayerShape(0, 2, 3, 3), LayerShape(1, 1, 5, 2)]


def make(fill: float = 0.0) -> KVPool:
    return KVPool(SHAPES, 6, BLOCK, dtype=torch.float32, device="cpu", fill=fill)


def numbered() -> KVPool:
    pool = make()
    for layer in pool.layers.values():
        for slots in (layer.key_slots, layer.value_slots):
            slots.copy_(torch.arange(slots.numel()).view(slots.shape))
    return pool


def test_layers_differ_in_shape_and_slots_alias_blocks() -> None:
    pool = make()
    assert pool.layers[0].keys.shape == (6, BLOCK, 2, 3)
    assert pool.layers[1].values.shape == (6, BLOCK, 1, 2)
    pool.layers[1].key_slots[2 * BLOCK + 1] = 7.0
    assert (pool.layers[1].keys[2, 1] == 7.0).all()
    assert pool.bytes_per_token == 4 * (2 * (3 + 3) + 1 * (5 + 2))


def test_fill_reaches_every_slot() -> None:
    pool = make(fill=math.nan)
    assert all(layer.keys.isnan().all() and layer.values.isnan().all() for layer in pool.layers.values())


@pytest.mark.parametrize("tokens", range(BLOCK + 1))
def test_copy_moves_exactly_the_first_tokens(tokens: int) -> None:
    pool, before = numbered(), numbered()
    pool.copy([Copy(src=1, dst=4, tokens=tokens)])
    for index, layer in pool.layers.items():
        old = before.layers[index]
        for new_blocks, old_blocks in ((layer.keys, old.keys), (layer.values, old.values)):
            assert torch.equal(new_blocks[4, :tokens], old_blocks[1, :tokens])
            assert torch.equal(new_blocks[4, tokens:], old_blocks[4, tokens:])
            assert torch.equal(new_blocks[[0, 1, 2, 3, 5]], old_blocks[[0, 1, 2, 3, 5]])


def test_copies_happen_in_order() -> None:
    """A copy of a copy carries what the first one brought, and the last writer of a block wins."""
    pool, before = numbered(), numbered()
    pool.copy([Copy(src=0, dst=3, tokens=3), Copy(src=3, dst=5, tokens=4), Copy(src=1, dst=3, tokens=2)])
    keys, old = pool.layers[0].keys, before.layers[0].keys
    assert torch.equal(keys[5], torch.cat([old[0, :3], old[3, 3:]]))
    assert torch.equal(keys[3], torch.cat([old[1, :2], old[0, 2:3], old[3, 3:]]))


@pytest.mark.parametrize(
    ("copy", "field"),
    [
        (Copy(src=6, dst=0, tokens=1), "copy.src is 6"),
        (Copy(src=0, dst=-1, tokens=1), "copy.dst is -1"),
        (Copy(src=0, dst=1, tokens=BLOCK + 1), "copy.tokens is 5"),
        (Copy(src=0, dst=1, tokens=-1), "copy.tokens is -1"),
    ],
)
def test_copies_outside_the_pool_are_named(copy: Copy, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        make().copy([copy])


def test_a_pool_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="num_blocks is 0"):
        KVPool(SHAPES, 0, BLOCK, dtype=torch.float32, device="cpu")
    with pytest.raises(InvalidRequest, match="block_size is 0"):
        KVPool(SHAPES, 1, 0, dtype=torch.float32, device="cpu")
    with pytest.raises(InvalidRequest, match=r"num_blocks is 10000000000000: .* GiB on cpu"):
        KVPool(SHAPES, 10**13, BLOCK, dtype=torch.float32, device="cpu")


def test_exported_blocks_make_the_same_blocks_elsewhere() -> None:
    pool, other = numbered(), make(fill=math.nan)
    rows = torch.full((3, pool.block_bytes), 7, dtype=torch.uint8)
    pool.export_blocks([4, 0, 2], rows)
    other.import_blocks([1, 5, 3], rows)
    for index, layer in pool.layers.items():
        for old, new in ((layer.keys, other.layers[index].keys), (layer.values, other.layers[index].values)):
            assert torch.equal(new[[1, 5, 3]], old[[4, 0, 2]])
            assert new[[0, 2, 4]].isnan().all()
    assert pool.block_bytes == BLOCK * pool.bytes_per_token


@pytest.mark.parametrize(
    ("blocks", "rows", "message"),
    [
        ([6], torch.zeros(1, 4 * 4 * 19, dtype=torch.uint8), "blocks is"),
        ([-1], torch.zeros(1, 4 * 4 * 19, dtype=torch.uint8), "blocks is"),
        ([0, 1], torch.zeros(1, 4 * 4 * 19, dtype=torch.uint8), "must be uint8 \\(2, 304\\)"),
        ([0], torch.zeros(1, 4 * 4 * 19), "torch.float32"),
    ],
)
def test_bytes_that_do_not_fit_are_named(blocks: list[int], rows: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make().export_blocks(blocks, rows)
    with pytest.raises(InvalidRequest, match=message):
        make().import_blocks(blocks, rows)

"""The native writer against torch's: the same bytes, in the same slots, for any numbers; in every build of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from radix.kv_bytes import PRECISIONS
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import KVFormat, LayerShape
from runtime.kv.rotation import rotate, rotate_by_sums
from runtime.kv.writing import TorchWriter, make_writer, native_obstacle
from runtime.native import NativeUnavailable, kv_writer
from runtime.native.kv_writer import MOST_DIM, NativeWriter
from runtime.native.records import kept
from tests.runtime.native.builds import build

BUILDS = {
    "this CPU": ["-march=native", "-O3", "-ffp-contract=fast"],
    "AVX2": ["-mavx2", "-mfma", "-O3", "-ffp-contract=fast"],
    "plain": ["-O2"],
}
DIMS = [1, 2, 3, 5, 7, 8, 12, 20, 31, 64, 80, 128, 192, 255, 256]
FORMATS = [KVFormat(name, name) for name in PRECISIONS] + [KVFormat("int8", "int4"), KVFormat("int4", "fp16")]
TOKENS = 37


@pytest.fixture(scope="module", params=BUILDS, autouse=True)
def writers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Writers of this module load the kernel as compiled for one kind of CPU."""
    built = build("pack", BUILDS[request.param], tmp_path_factory.mktemp("build"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_writer, "load_library", lambda name: built)
        yield


def numbers(heads: int, dim: int) -> torch.Tensor:
    """`[TOKENS, heads, dim]`: heads of many sizes, and such as no quantiser likes."""
    random = torch.Generator().manual_seed(dim)
    found = torch.randn(TOKENS, heads, dim, generator=random) * 10 ** torch.empty(TOKENS, 1, 1).uniform_(
        -3, 3, generator=random
    )
    found[0] = 0
    found[1] = -0.0
    found[2] = 3e38
    found[3] = 1e-42
    found[4, :, -1] = float("inf")
    found[5, :, 0] = float("-inf")
    found[6, :, dim // 2] = float("nan")
    found[7] = 5e-8
    found[8] = 70000.0
    found[9, :, 0] = 1e30
    # On the borders between codes, where the way of rounding tells.
    found[10] = torch.arange(dim).float() - dim // 2
    found[11] = (torch.arange(dim).float() - dim // 2) / 2
    found[12] = torch.arange(dim).float() + 0.5
    found[13] = -1.0
    found[14, :, : dim // 2] = 0
    found[15] = 448.0 / 2 ** torch.arange(dim).float().clamp(max=30)
    return found


def written(
    writer: type[NativeWriter] | type[TorchWriter], format_: KVFormat, dims: tuple[int, int], heads: int
) -> KVPool:
    pool = KVPool([LayerShape(3, heads, *dims)], 6, 8, dtype=format_, device="cpu", fill=float("nan"))
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(1))[:TOKENS]
    keys, values = (numbers(heads, dim) for dim in dims)
    one = TorchWriter(pool, rotate_by_sums) if writer is TorchWriter else NativeWriter(pool)
    one.write(3, slots, keys, values)
    return pool


@pytest.mark.parametrize("format_", FORMATS, ids=lambda one: one.name)
def test_the_bytes_are_those_of_torch(format_: KVFormat) -> None:
    for index, dim in enumerate(DIMS):
        dims, heads = (dim, DIMS[-1 - index]), 1 + index % 3
        wanted, found = (written(writer, format_, dims, heads) for writer in (TorchWriter, NativeWriter))
        for a, b in zip(wanted.layers[3].tensors, found.layers[3].tensors, strict=True):
            # What is no number may be any such; packed ones are bytes, and must be the same.
            same = (a == b) | (a.isnan() & b.isnan())
            assert same.all(), (dim, (~same).nonzero()[:9])


def test_heads_are_turned_to_the_last_bit() -> None:
    for dim in DIMS:
        pool = KVPool([LayerShape(0, 1, dim, dim)], 1, 1, dtype=torch.float32, device="cpu")
        heads = numbers(5, dim)[10:]
        assert torch.equal(NativeWriter(pool).turn(heads), rotate_by_sums(heads))
        # A view that has other numbers between its tokens.
        assert torch.equal(NativeWriter(pool).turn(heads[:, 1:3]), rotate_by_sums(heads[:, 1:3]))


def test_many_tokens_are_shared_out() -> None:
    shape, random = LayerShape(0, 3, 64, 64), torch.Generator().manual_seed(2)
    joint = torch.randn(700, 9, 64, generator=random)
    pools = [KVPool([shape], 50, 16, dtype=KVFormat("int4", "fp8_e4m3"), device="cpu") for _ in range(2)]
    slots = torch.randperm(800, generator=random)[:700]
    for writer in (TorchWriter(pools[0], rotate_by_sums), NativeWriter(pools[1])):
        writer.write(0, slots, joint[:, 3:6], joint[:, 6:])
    assert all(map(torch.equal, pools[0].layers[0].tensors, pools[1].layers[0].tensors))


def test_half_precision_keys_are_taken_as_they_are() -> None:
    key, value = torch.randn(2, 4, 2, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    pools = [KVPool([LayerShape(0, 2, 64, 64)], 1, 4, dtype=torch.bfloat16, device="cpu") for _ in range(2)]
    for writer in (TorchWriter(pools[0]), NativeWriter(pools[1])):
        writer.write(0, torch.arange(4), key, value)
    assert all(map(torch.equal, pools[0].layers[0].tensors, pools[1].layers[0].tensors))
    assert NativeWriter(pools[0]).turn(key).dtype == torch.bfloat16


def test_whoever_cannot_be_served_hears_why(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = KVPool([LayerShape(0, 1, MOST_DIM + 1, 8)], 1, 1, dtype=torch.float32, device="cpu")
    assert f"a head has {MOST_DIM + 1} numbers" in str(native_obstacle(wide))
    pool = KVPool([LayerShape(0, 1, 8, 8)], 1, 4, dtype=KVFormat("int8", "int8"), device="cpu")
    assert isinstance(make_writer(pool, row_invariant=True), NativeWriter)
    # Read as another kind, the bytes are others.
    monkeypatch.setattr(kv_writer, "kept", lambda half: (4, kept(half)[1]))
    assert native_obstacle(pool) == "it writes other bytes to layer 0"
    assert isinstance(make_writer(pool, row_invariant=True), TorchWriter)

    def unavailable(_: str) -> None:
        raise NativeUnavailable("no C compiler is installed")

    monkeypatch.setattr(kv_writer, "load_library", unavailable)
    assert native_obstacle(pool) == "no C compiler is installed"
    assert make_writer(pool, row_invariant=True).turn is rotate_by_sums
    assert make_writer(pool, row_invariant=False).turn is rotate

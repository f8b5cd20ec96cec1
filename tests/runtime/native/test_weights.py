"""Packed weights: the narrowest format is found from the numbers alone, and every number comes back to the last bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.native import NativeUnavailable
from runtime.native.product import NativeProduct
from runtime.native.weights import SWITCH, Format, Panels, pack_weights

GROUP = 32


def pack(weight: torch.Tensor) -> Panels:
    try:
        return pack_weights(weight)
    except NativeUnavailable as why:
        pytest.skip(str(why))


def products(weight: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[NativeProduct, NativeProduct]:
    """The packed product, and the one of the same numbers in float32."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            packed = NativeProduct(weight, bias)
            patch.setenv(SWITCH, "off")
            return packed, NativeProduct(weight, bias)
        except NativeUnavailable as why:
            pytest.skip(str(why))


def unpack(panels: Panels) -> np.ndarray:
    """The matrix as weights.h describes the bytes, read by nothing but NumPy."""
    width, inputs = panels.width, panels.inputs
    out = np.zeros((len(panels.formats) * width, inputs), np.float32)
    ends = [*panels.offsets.tolist()[1:], panels.data.numel()]
    for i, (kind, begin, end) in enumerate(zip(panels.formats.tolist(), panels.offsets.tolist(), ends, strict=True)):
        panel = panels.data.numpy()[begin:end]
        out[i * width : (i + 1) * width] = _numbers(Format(kind), panel, width, inputs).T
    return out[: panels.outputs]


def _numbers(kind: Format, panel: np.ndarray, width: int, inputs: int) -> np.ndarray:
    if kind == Format.FLOATS:
        return panel.view(np.float32).reshape(inputs, width)
    if kind == Format.HALF:
        return panel.view(np.float16).reshape(inputs, width).astype(np.float32)
    if kind == Format.BRAIN:
        return (panel.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(inputs, width)
    groups = panel.reshape(inputs // GROUP, -1)
    scale = groups[:, : 2 * width].copy().view(np.float16).astype(np.float32)[:, None]
    rest = groups[:, 2 * width :]
    if kind == Format.OCTETS:
        codes = rest.copy().view(np.int8).reshape(-1, GROUP, width)
        return (scale * codes.astype(np.float32)).reshape(inputs, width)
    offset = np.full((1, 1, 1), -0.0, np.float32)
    if kind == Format.NIBBLES:
        offset = rest[:, : 2 * width].copy().view(np.float16).astype(np.float32)[:, None]
        rest = rest[:, 2 * width :]
    words = rest.copy().view(np.uint32).reshape(-1, 4, 1, width)
    codes = (words >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15).reshape(-1, GROUP, width).astype(np.float32)
    return (scale * (codes - (8 if kind == Format.SIGNED_NIBBLES else 0)) + offset).reshape(inputs, width)


def kept_exactly(weight: torch.Tensor) -> Panels:
    panels = pack(weight)
    assert np.array_equal(unpack(panels).view(np.uint32), weight.numpy().view(np.uint32))
    return panels


def quantised(kind: str, outputs: int, inputs: int) -> torch.Tensor:
    """Random numbers as a GGUF file of that kind holds them, in float32."""
    numbers = np.random.default_rng(outputs + inputs).normal(size=(outputs, inputs)).astype(np.float32)
    ggml = GGMLQuantizationType[kind]
    return torch.from_numpy(dequantize(quantize(numbers, ggml), ggml).reshape(outputs, inputs).copy())


def matrix(kind: Format, outputs: int, inputs: int) -> torch.Tensor:
    if kind == Format.FLOATS:
        return torch.randn(outputs, inputs)
    if kind in (Format.BRAIN, Format.HALF):
        return torch.randn(outputs, inputs).to(torch.bfloat16 if kind == Format.BRAIN else torch.float16).float()
    names = {Format.NIBBLES: "Q4_1", Format.SIGNED_NIBBLES: "Q4_0", Format.OCTETS: "Q8_0"}
    return quantised(names[kind], outputs, inputs)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("Q4_0", Format.SIGNED_NIBBLES),
        ("Q4_1", Format.NIBBLES),
        ("Q5_0", Format.OCTETS),
        ("Q8_0", Format.OCTETS),
        ("BF16", Format.BRAIN),
        ("F16", Format.HALF),
        ("F32", Format.FLOATS),
    ],
)
def test_what_a_gguf_file_holds_is_recognised(kind: str, wanted: Format) -> None:
    assert kept_exactly(quantised(kind, 100, 96)).numbers == {wanted: 9600}


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (47, 64), (49, 96), (96, 576), (150, 1536)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_have_the_bits_of_float32(kind: Format, outputs: int, inputs: int, bias: bool) -> None:
    weight = matrix(kind, outputs, inputs)
    packed, plain = products(weight, torch.randn(outputs) if bias else None)
    assert set(packed.panels.numbers) == {kind}
    # From one over every number of rows that are taken together to those for which panels are unpacked, and on.
    for count in (0, *range(1, 18), 40, 131):
        x = torch.randn(count, inputs)
        assert torch.equal(packed(x), plain(x))


@pytest.mark.parametrize("inputs", [1, 7, 31, 33, 100])
@pytest.mark.parametrize("kind", [Format.BRAIN, Format.HALF])
def test_any_number_of_inputs_may_be_halved(inputs: int, kind: Format) -> None:
    weight = matrix(kind, 50, inputs)
    assert kept_exactly(weight).numbers == {kind: 50 * inputs}
    packed, plain = products(weight)
    x = torch.randn(11, inputs)
    assert torch.equal(packed(x), plain(x))


@pytest.mark.parametrize("kind", [kind for kind in Format if kind != Format.FLOATS])
def test_one_number_that_is_off_keeps_its_panel_in_float32(kind: Format) -> None:
    weight = matrix(kind, 200, 96)
    bits = weight.view(torch.int32)
    bits[120, 50] ^= 1
    width = kept_exactly(weight).width
    assert pack(weight).numbers == {kind: (200 - width) * 96, Format.FLOATS: width * 96}
    packed, plain = products(weight)
    for count in (1, 8, 20):
        x = torch.randn(count, 96)
        assert torch.equal(packed(x), plain(x))


def test_siblings_of_other_kinds_keep_their_own() -> None:
    width = pack(torch.zeros(1, 32)).width
    parts = [matrix(kind, 2 * width, 64) for kind in Format]
    assert kept_exactly(torch.cat(parts)).numbers == dict.fromkeys(Format, 2 * width * 64)


half = st.floats(-100, 100, width=16)
codes = st.lists(st.integers(0, 15), min_size=GROUP, max_size=GROUP)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(half, half, codes, st.sampled_from([0, 8, 100])), min_size=1, max_size=4))
def test_any_group_comes_back(groups: list[tuple[float, float, list[int], int]]) -> None:
    rows = [np.float32(d) * (np.array(q, np.float32) - np.float32(zero)) + np.float32(m) for d, m, q, zero in groups]
    kept_exactly(torch.from_numpy(np.stack(rows).astype(np.float32)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(width=32), min_size=64, max_size=64))
def test_any_numbers_come_back(numbers: list[float]) -> None:
    kept_exactly(torch.tensor(numbers).view(2, 32))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 6e-8, 3e38, 65520.0])
@pytest.mark.parametrize("kind", Format)
def test_odd_numbers_come_back(kind: Format, odd: float) -> None:
    weight = matrix(kind, 60, 64)
    weight[3, 7] = odd
    weight[50] = odd
    kept_exactly(weight)


def test_nothing_is_tried_when_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = matrix(Format.NIBBLES, 60, 64)
    monkeypatch.setenv(SWITCH, "off")
    assert kept_exactly(weight).numbers == {Format.FLOATS: 60 * 64}


def test_a_matrix_may_be_a_part_of_another_or_turned() -> None:
    wide = matrix(Format.NIBBLES, 70, 96)
    part = wide[5:60, 32:96]
    assert pack(part).numbers == {Format.NIBBLES: 55 * 64}
    assert np.array_equal(unpack(pack(part)), part.numpy())
    turned = wide.t().contiguous().t()
    assert np.array_equal(unpack(pack(turned)), wide.numpy())


def test_threads_unpack_into_memory_of_their_own() -> None:
    pairs = [products(matrix(Format.NIBBLES, 300, inputs)) for inputs in (64, 320, 960)]
    rows = [torch.randn(30, packed.panels.inputs) for packed, _ in pairs]
    wanted = [plain(x) for (_, plain), x in zip(pairs, rows, strict=True)]
    wrong: list[int] = []

    def work(which: int) -> None:
        packed = pairs[which][0]
        wrong.extend(which for _ in range(100) if not torch.equal(packed(rows[which]), wanted[which]))

    threads = [threading.Thread(target=work, args=(i % 3,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_may_differ_in_what_they_take_for_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    weight = torch.randint(-8, 8, (6000, 64)).float() * 2**-20
    # Of this thread alone. The scale is below the normal numbers of half precision.
    torch.set_flush_denormal(True)
    try:
        assert kept_exactly(weight).numbers == {Format.SIGNED_NIBBLES: 6000 * 64}
    finally:
        torch.set_flush_denormal(False)

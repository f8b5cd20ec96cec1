"""Which back end a model gets, for devices and libraries that are not here."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as torch_varlen

from runtime.attention import choice, native
from runtime.attention.choice import choose, in_order, survey
from runtime.attention.interface import AttentionOptions
from runtime.attention.needs import Needs
from runtime.attention.proof import disproof
from runtime.attention.sdpa import SdpaAttention
from runtime.errors import InvalidRequest
from runtime.kv.precision import KVFormat, LayerShape
from tests.runtime import attention_libraries as libraries

HOPPER = Needs(torch.device("cuda"), torch.bfloat16, KVFormat("bf16", "bf16"), 16, (9, 0), frozenset({(128, 128)}))
CPU = replace(
    HOPPER, device=torch.device("cpu"), capability=None, dtype=torch.float32, kv_format=KVFormat("fp32", "fp32")
)


@pytest.fixture(autouse=True)
def everything_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", libraries.flash_attn_3())
    monkeypatch.setitem(sys.modules, "flash_attn", libraries.flash_attn_2())
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setattr(torch_varlen, "varlen_attn", libraries.varlen_2_13([]))
    # There is no GPU to try them on.
    monkeypatch.setattr(choice, "disproof", lambda *_: None)


def test_the_fastest_that_is_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert choose("auto", HOPPER) == "fa3"
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    # At pages of 16 version 2 would gather the KV of every step.
    assert choose("auto", HOPPER) == "triton"
    assert choose("auto", replace(HOPPER, block_size=256)) == "fa2"
    monkeypatch.setitem(sys.modules, "triton", None)
    assert choose("auto", HOPPER) == "fa2"
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert choose("auto", HOPPER) == "varlen"
    assert choose("auto", replace(HOPPER, capability=(7, 5))) == "sdpa"
    assert choose("auto", CPU) == "native"
    monkeypatch.setenv("RADIXLOOP_NATIVE", "off")
    native.load_library.cache_clear()
    caplog.set_level("INFO")
    assert choose("auto", CPU) == "sdpa"
    assert "attention through sdpa; passed over: native (RADIXLOOP_NATIVE is off)" in caplog.text


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("fa3", {"capability": (8, 0)}, "not made for compute capability 8.0"),
        ("fa3", {"capability": (10, 0)}, "not made for compute capability 10.0"),
        ("fa3", {"dtype": torch.float32}, "takes float16 and bfloat16, not float32"),
        ("fa3", {"kv_format": KVFormat("fp16", "fp16")}, "the pool is fp16"),
        ("fa3", {"dims": frozenset({(192, 128)})}, "one dimension, not 192 and 128"),
        ("fa3", {"dims": frozenset({(512, 512)})}, "up to 256 in steps of 8, not 512"),
        ("fa2", {"capability": (7, 5)}, "not made for compute capability 7.5"),
        ("fa2", {"dims": frozenset({(36, 36)})}, "in steps of 8, not 36"),
        ("varlen", {"softcap": True}, "has no softcap"),
        ("triton", {"device": torch.device("cpu"), "capability": None}, "needs a CUDA GPU"),
    ],
)
def test_why_one_does_not_serve(name: str, change: dict[str, Any], why: str) -> None:
    needs = replace(HOPPER, **change)
    found = survey(needs)[name]
    assert found is not None
    assert why in found
    with pytest.raises(InvalidRequest, match="cannot serve this model here"):
        choose(name, needs)
    assert survey(HOPPER)[name] is None


def test_the_native_one_is_for_cpus() -> None:
    assert survey(HOPPER)["native"] == "runs on the CPU only"


def test_a_build_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    softcapped = replace(HOPPER, softcap=True)
    assert choose("auto", softcapped) == "fa3"
    built = ModuleType("flash_attn_config")
    built.CONFIG = {"build_flags": {"FLASHATTENTION_DISABLE_SOFTCAP": True}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_config", built)
    assert choose("auto", softcapped) == "triton"
    assert choose("auto", HOPPER) == "fa3"


def test_an_older_library_is_told_by_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flash_attn_interface", "flash_attn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(torch_varlen, "varlen_attn", libraries.varlen_2_11([]))
    found = survey(replace(HOPPER, block_size=256))
    assert found["fa3"] is not None
    assert found["fa2"] is not None
    # It serves, but it gathers: whoever reads pages in place comes first.
    assert found["varlen"] is None
    assert in_order(256) == ["fa3", "fa2", "triton", "native", "varlen", "sdpa"]
    monkeypatch.setattr(torch_varlen, "varlen_attn", libraries.varlen_2_13([]))
    assert in_order(256) == ["fa3", "fa2", "varlen", "triton", "native", "sdpa"]


def test_one_that_answers_wrongly_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choice, "disproof", lambda make, _: "off by 7" if make is choice.FlashAttention3 else None)
    caplog.set_level("INFO")
    assert choose("auto", HOPPER) == "triton"
    assert "attention through triton; passed over: fa3 (off by 7)" in caplog.text
    with pytest.raises(InvalidRequest, match="off by 7"):
        choose("fa3", HOPPER)


def test_the_proof_finds_wrong_answers_and_failures() -> None:
    needs = replace(CPU, window=True, softcap=True, sinks=True, dims=frozenset({(16, 16), (24, 16)}))

    class Wrong(SdpaAttention):
        def __call__(self, *args: Any) -> Any:
            out, lse = super().__call__(*args)
            return out * 1.01, lse

    class Silent(SdpaAttention):
        def __call__(self, query: torch.Tensor, *args: Any) -> Any:
            return torch.full_like(query, float("nan")), None

    class Broken(SdpaAttention):
        def __call__(self, *_: Any) -> Any:
            raise RuntimeError("no kernel image is available")

    plain = replace(CPU, dims=frozenset({(16, 16)}))
    assert disproof(SdpaAttention, needs) is None
    assert "differs from the reference" in str(disproof(Wrong, plain))
    assert "differs from the reference by nan" in str(disproof(Silent, plain))
    assert "failed on a small step: RuntimeError: no kernel image" in str(disproof(Broken, plain))


def test_needs_come_from_what_layers_do() -> None:
    layers = [LayerShape(0, 2, 64, 64), LayerShape(1, 2, 80, 80)]
    options = [AttentionOptions(0.1, window=9), AttentionOptions(0.1, sinks=torch.zeros(4))]
    needs = Needs.of(
        layers,
        options,
        device=torch.device("cpu"),
        dtype=torch.float32,
        kv_format=KVFormat("bf16", "bf16"),
        block_size=4,
    )
    assert needs == Needs(
        torch.device("cpu"),
        torch.float32,
        KVFormat("bf16", "bf16"),
        4,
        None,
        frozenset({(64, 64), (80, 80)}),
        True,
        False,
        True,
    )


def test_unknown_name() -> None:
    with pytest.raises(InvalidRequest, match="attention is 'flashy': must be one of auto, fa3, fa2, varlen, triton"):
        choose("flashy", CPU)

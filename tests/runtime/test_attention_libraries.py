"""Back ends over GPU libraries, with stand-ins for the libraries: what is handed over means what was asked for.

No real kernel of these libraries runs here.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as torch_varlen

from runtime.attention.flash_attention import FlashAttention2, FlashAttention3
from runtime.attention.interface import AttentionBackend, AttentionOptions
from runtime.attention.needs import Needs
from runtime.attention.proof import BRANCHES, DECODE, MIXED, TOLERANCE, Trial, trial
from runtime.attention.shared_prefix import SharedPrefixAttention
from runtime.attention.varlen import VarlenAttention
from tests.runtime import attention_libraries as libraries

CPU = torch.device("cpu")
SINKS = torch.linspace(-1, 2, 8)
OPTIONS = {
    "plain": AttentionOptions(0.3),
    "lse": AttentionOptions(0.3, want_lse=True),
    "window": AttentionOptions(0.3, window=29, want_lse=True),
    "window-of-one": AttentionOptions(0.3, window=1),
    "sinks": AttentionOptions(0.3, sinks=SINKS, want_lse=True),
    "softcap": AttentionOptions(0.3, softcap=3.0, want_lse=True),
}


def make(rows: tuple[tuple[int, int], ...], block_size: int, options: AttentionOptions, **more: Any) -> Trial:
    needs = Needs(CPU, torch.bfloat16, torch.bfloat16, block_size, None, frozenset())
    return trial(needs, (64, 64), rows, options, **more)


def check(backend: AttentionBackend, one: Trial) -> None:
    assert one.error(backend) <= TOLERANCE[torch.bfloat16]
    out, lse = backend(one.query, one.kv, one.plan, one.options)
    assert out.dtype == torch.bfloat16
    assert out.shape == one.query.shape
    assert (lse is not None) >= one.options.want_lse


@pytest.mark.parametrize("rows", [MIXED, DECODE, BRANCHES], ids=["mixed", "decode", "branches"])
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("name", OPTIONS)
def test_flash_attention_3(
    name: str, block_size: int, rows: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", libraries.flash_attn_3())
    for backend in (FlashAttention3(), SharedPrefixAttention(FlashAttention3())):
        check(backend, make(rows, block_size, OPTIONS[name]))


@pytest.mark.parametrize(
    ("rows", "block_size", "called"),
    [
        (MIXED, 16, "varlen"),
        (DECODE, 16, "varlen"),
        (MIXED, 256, "varlen-paged"),
        (MIXED, 512, "varlen-paged"),
        (DECODE, 256, "decode"),
    ],
)
@pytest.mark.parametrize("name", OPTIONS)
def test_flash_attention_2(
    name: str, rows: tuple[tuple[int, int], ...], block_size: int, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = libraries.flash_attn_2()
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    check(FlashAttention2(), make(rows, block_size, OPTIONS[name]))
    assert set(module.calls) == {called}


@pytest.mark.parametrize("version", ["2.11", "2.13"])
@pytest.mark.parametrize("rows", [MIXED, DECODE], ids=["mixed", "decode"])
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "softcap"])
def test_varlen(
    name: str, block_size: int, rows: tuple[tuple[int, int], ...], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    old = version == "2.11"
    monkeypatch.setattr(torch_varlen, "varlen_attn", (libraries.varlen_2_11 if old else libraries.varlen_2_13)(calls))
    for group in (1, 4):
        heads = 2 * group
        options = OPTIONS[name]
        if options.sinks is not None:
            options = AttentionOptions(0.3, sinks=SINKS[:heads], want_lse=True)
        check(VarlenAttention(), make(rows, block_size, options, group=group))
    assert set(calls) == {"packed" if old or block_size == 16 else "paged"}


def test_the_installed_varlen_is_one_of_those_tested() -> None:
    stand_ins = [libraries.varlen_2_11([]), libraries.varlen_2_13([])]
    assert any(libraries.same_signature(stand_in, torch_varlen.varlen_attn) for stand_in in stand_ins)


def test_a_wrong_log_sum_exp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = libraries.flash_attn_3()
    real = module.flash_attn_with_kvcache

    def transposed(*args: Any, **kwargs: Any) -> Any:
        out, lse, *rest = real(*args, **kwargs)
        return (out, lse.transpose(0, 1), *rest)

    module.flash_attn_with_kvcache = transposed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    one = make(DECODE, 16, OPTIONS["lse"])
    with pytest.raises(RuntimeError, match="not heads x tokens"):
        FlashAttention3()(one.query, one.kv, one.plan, one.options)

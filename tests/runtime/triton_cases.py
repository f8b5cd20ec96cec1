"""Our Triton kernel against the reference, on this machine's CPU; run as a script, since Triton decides at its import.

    TRITON_INTERPRET=1 python tests/runtime/triton_cases.py     errors of every case, as JSON
    python tests/runtime/triton_cases.py sm_90                  compile the kernels for that GPU, sizes as JSON

Triton's interpreter multiplies the bits of bfloat16 as if they were whole numbers, so bfloat16 queries are only
compiled here; a bfloat16 pool under float32 queries is computed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from radix.kv_bytes import HALVES
from runtime.attention.interface import AttentionOptions
from runtime.attention.needs import Needs
from runtime.attention.paged_layout import PagedLayout, split
from runtime.attention.proof import BRANCHES, trial
from runtime.attention.reference import ReferenceAttention
from runtime.attention.shared_prefix import SharedPrefixAttention
from runtime.attention.triton_backend import TritonAttention, block_n
from runtime.execution.batch import BatchItem, StepPlan
from runtime.kv.kv_pool import KVPool, LayerKV
from runtime.kv.packed_view import PackedView
from runtime.kv.precision import KVFormat, LayerShape

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class Case:
    """Rows are `(start, new tokens)`."""

    page: int
    rows: tuple[tuple[int, int], ...]
    kv_heads: int = 1
    group: int = 1
    key_dim: int = 64
    value_dim: int = 64
    dtype: torch.dtype = F32
    pool: torch.dtype | KVFormat | None = None
    splits: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sinks: bool = False


DECODE = ((0, 1), (16, 1), (69, 1))
MIXED = ((40, 1), (0, 33), (7, 30), (0, 1))
CASES = {
    "page-1": Case(1, ((5, 1), (0, 9)), group=2),
    "page-4-two-kv-heads": Case(4, MIXED, kv_heads=2, group=3),
    "page-16": Case(16, MIXED, group=4),
    "page-256": Case(256, ((255, 1), (200, 70)), group=2),
    "odd-page": Case(7, DECODE, group=2),
    "group-of-8": Case(16, MIXED, group=8),
    "no-group": Case(16, MIXED, kv_heads=2),
    "dim-80": Case(16, DECODE, group=3, key_dim=80, value_dim=80),
    "dim-128": Case(16, DECODE, group=7, key_dim=128, value_dim=128),
    "values-narrower": Case(16, MIXED, kv_heads=2, key_dim=24, value_dim=16),
    "window": Case(4, MIXED, group=2, options={"window": 12}),
    "window-of-one": Case(4, DECODE, options={"window": 1}),
    "window-wider": Case(16, DECODE, options={"window": 500}, splits=2),
    "softcap": Case(16, MIXED, group=2, options={"softcap": 1.5}),
    "sinks": Case(16, MIXED, group=4, sinks=True),
    "split": Case(16, ((299, 1), (0, 1), (60, 5)), group=2, splits=4),
    "split-in-more-than-there-is": Case(16, ((2, 1), (100, 1)), group=2, splits=8),
    "split-window-sinks-softcap": Case(
        4, ((200, 1), (90, 3)), group=3, splits=4, sinks=True, options={"window": 90, "softcap": 3.0}
    ),
    "float16": Case(16, MIXED, group=4, dtype=F16),
    "float16-split": Case(16, DECODE, group=4, dtype=F16, splits=2),
    "bfloat16-pool": Case(16, DECODE, group=4, pool=BF16),
    "fp8": Case(16, MIXED, group=2, pool=KVFormat("fp8_e4m3", "fp8_e4m3")),
    "int8": Case(16, MIXED, group=2, pool=KVFormat("int8", "int8")),
    "int4": Case(16, MIXED, group=2, kv_heads=2, pool=KVFormat("int4", "int4")),
    "int4-dim-80-split": Case(
        16, ((299, 1), (60, 5)), group=2, key_dim=80, value_dim=40, splits=4, pool=KVFormat("int4", "int4")
    ),
    "int8-keys-float16-queries": Case(16, DECODE, group=4, dtype=F16, pool=KVFormat("int8", "fp16")),
    "half-keys-int4-values": Case(4, MIXED, group=4, pool=KVFormat("fp16", "int4"), options={"window": 12}),
}
# Largest error allowed of an output, by the dtype of the queries.
LIMITS = {F32: 1e-5, F16: 4e-3}


def build(case: Case) -> tuple[torch.Tensor, LayerKV, StepPlan, AttentionOptions]:
    """A pool of NaN in which the slots of the rows alone are written, in scattered blocks."""
    counts = [-(-(start + new) // case.page) for start, new in case.rows]
    total = sum(counts) + 1
    shape = LayerShape(0, case.kv_heads, case.key_dim, case.value_dim)
    pool = KVPool([shape], total, case.page, dtype=case.pool or case.dtype, device="cpu", fill=float("nan"))
    # Block 0 belongs to nobody.
    order = np.random.default_rng(2).permutation(np.arange(1, total)).astype(np.int32)
    tables = np.split(order, np.cumsum(counts)[:-1])
    items = [
        BatchItem(np.zeros(new, np.int32), start, table) for (start, new), table in zip(case.rows, tables, strict=True)
    ]
    plan = StepPlan(items, case.page, total, pool.device)
    random = torch.Generator().manual_seed(1)
    kv = pool.layers[0]
    for row in plan.rows:
        where = np.arange(row.kv_len)
        slots = torch.from_numpy(row.table[where // case.page].astype(np.int64) * case.page + where % case.page)
        for tensor in (kv.key_slots, kv.value_slots):
            numbers = torch.randn(len(slots), case.kv_heads, tensor.shape[-1], generator=random)
            tensor[slots] = numbers.to(tensor.dtype)
    heads = case.kv_heads * case.group
    query = torch.randn(plan.total, heads, case.key_dim, generator=random).to(case.dtype)
    sinks = torch.linspace(-2, 4, heads) if case.sinks else None
    return query, kv, plan, AttentionOptions(scale=0.2, want_lse=True, sinks=sinks, **case.options)


def error(case: Case) -> dict[str, float]:
    query, kv, plan, options = build(case)
    wanted, wanted_lse = ReferenceAttention()(query, kv, plan, options)
    out, lse = TritonAttention(case.splits)(query, kv, plan, options)
    assert lse is not None
    assert wanted_lse is not None
    assert out.dtype == case.dtype
    return {
        "out": float((out.float() - wanted.float()).abs().max()),
        "lse": float((lse - wanted_lse).abs().max()),
        "limit": LIMITS[case.dtype],
    }


def padding() -> dict[str, float]:
    """A decode step as a CUDA graph lays it out: rows of padding have no KV at all and must come out as zeros."""
    query, kv, plan, options = build(Case(16, DECODE, group=2, splits=2))
    table = torch.stack([torch.from_numpy(np.resize(row.table, 5)) for row in plan.rows] + [torch.zeros(5)])
    packed = torch.zeros(3 * 4 + 2 + 4 * 5, dtype=torch.int32)
    cu_q, kv_lens, _, room = split(packed, 4, 5)
    cu_q[:] = torch.arange(5)
    kv_lens[:3] = torch.tensor([row.kv_len for row in plan.rows])
    room.copy_(table)
    wanted, _ = ReferenceAttention()(query, kv, plan, options)
    padded = torch.cat([query, query[:1]])
    wider = StepPlan([BatchItem(np.zeros(1, np.int32), 0, plan.rows[0].table[:1])], 16, 9, plan.device)
    layout = PagedLayout(*split(packed, 4, 5), np.ones(4, np.int64), 80)
    wider.derived("paged", lambda: layout)
    out, lse = TritonAttention(2)(padded, kv, wider, options)
    assert lse is not None
    return {
        "out": float((out[:3] - wanted).abs().max()),
        "padding": float(out[3].abs().max()),
        "lse": float(lse[3].max()),
    }


def branches() -> float:
    """The largest distance from the reference when rows share a beginning that is attended once for all of them."""
    needs = Needs(torch.device("cpu"), F32, KVFormat("fp32", "fp32"), 64, None, frozenset())
    one = trial(needs, (16, 16), BRANCHES, AttentionOptions(0.2, want_lse=True), kv_heads=1, group=2)
    return one.error(SharedPrefixAttention(TritonAttention(2)))


def far() -> float:
    """The largest distance from the reference where blocks and heads lie beyond what 32 bits count.

    Almost all of the memory is never touched.
    """
    page, dim, heads = 16, 64, 3
    kept = KVFormat("int8", "int8")
    block = page * kept.bytes_per_token([LayerShape(0, 1, dim, dim)]) // 2
    blocks = 2**31 // block + 8
    halves = []
    for half in HALVES:
        packing = kept.packing(0, half)
        assert packing is not None
        records = torch.empty(blocks * block, dtype=torch.uint8).view(blocks, page, 1, -1)
        halves.append(PackedView(records, packing, dim))
    kv = LayerKV(*halves, *(half.flatten(0, 1) for half in halves))
    table = np.array([blocks - 2, 3, blocks - 1], dtype=np.int32)
    random = torch.Generator().manual_seed(6)
    for block_id in table:
        for half in halves:
            half[int(block_id)] = torch.randn(page, 1, dim, generator=random)
    apart = 2**30 + 8
    numbers = torch.empty((heads - 1) * apart + 2 * dim, dtype=F16)
    query = numbers.as_strided((2, heads, dim), (dim, apart, 1))
    query.copy_(torch.randn(2, heads, dim, generator=random))
    plan = StepPlan([BatchItem(np.zeros(2, np.int32), 2 * page + 3, table)], page, blocks, torch.device("cpu"))
    options = AttentionOptions(scale=0.2)
    wanted, _ = ReferenceAttention()(query, kv, plan, options)
    out, _ = TritonAttention(1)(query, kv, plan, options)
    return float((out.float() - wanted.float()).abs().max())


def family_errors() -> dict[str, float]:
    """Whole models whose layers attend through the kernel: the largest relative distance of a row of logits."""
    import transformers

    from runtime.execution.model_runner import ModelRunner
    from runtime.models.loader import prepare_model
    from tests.runtime.test_families import FAMILIES

    found = {}
    for name in ("gemma2-softcap", "gpt-oss-sinks", "deepseek-v3-mla"):
        torch.manual_seed(11)
        network = transformers.AutoModelForCausalLM.from_config(FAMILIES[name](), dtype=F32)
        for parameter_name, parameter in network.named_parameters():
            if parameter_name.endswith("sinks"):
                torch.nn.init.normal_(parameter, std=0.5)
        loaded = prepare_model(network, None, name=name, attention="reference")
        random = np.random.default_rng(4)
        tables = random.permutation(24).astype(np.int32).reshape(3, 8)
        prompts = random.integers(0, 90, (3, 20)).astype(np.int32)
        logits = []
        for backend in (ReferenceAttention(), TritonAttention()):
            runner = ModelRunner(loaded, 24, 4, fill=float("nan"))
            runner.backend = backend
            runner.forward([BatchItem(prompts[0][:19], 0, tables[0]), BatchItem(prompts[1][:3], 0, tables[1])])
            # A decode row, a chunk behind a prefix, and a whole prompt in one step.
            starts = (19, 3, 0)
            items = [BatchItem(p[start:], start, t, 1) for p, start, t in zip(prompts, starts, tables, strict=True)]
            logits.append(runner.forward(items))
        wanted, got = logits
        found[name] = float(((got - wanted).norm(dim=1) / wanted.norm(dim=1)).max())
    return found


# Query dtype, head dimension, lanes of a tile, parts, and (kind, bytes) of keys and of values; 0 is the queries' dtype.
PLAIN = ((0, 0), (0, 0))
COMPILED = [
    (BF16, 128, 128, 1, PLAIN),
    (BF16, 128, 16, 8, PLAIN),
    (F32, 64, 16, 8, PLAIN),
    (BF16, 128, 16, 8, ((3, 130), (4, 130))),
    (BF16, 128, 128, 1, ((6, 84), (5, 66))),
]
# Of the arguments that Triton looks at, these are no multiples of 16 at a step.
_UNALIGNED = ("scale", "softcap", "lse_token")


def compile_all(capability: int) -> dict[str, dict[str, int]]:
    """For each kernel the bytes of machine code and of shared memory, and the matrix instructions in it."""
    from runtime.attention import triton_kernel

    kinds = {F32: "*fp32", F16: "*fp16", BF16: "*bf16"}
    found = {}
    for dtype, dim, block_m, splits, kept in COMPILED:
        full = dtype == F32
        constants: dict[str, Any] = {
            "PAGE": 16,
            "GROUP": 7,
            **dict.fromkeys(("KEY_DIM", "VALUE_DIM", "KEY_PAD", "VALUE_PAD"), dim),
            "BLOCK_M": block_m,
            "BLOCK_N": block_n(dim, full),
            "SPLITS": splits,
            **dict.fromkeys(("HAS_WINDOW", "HAS_SOFTCAP", "HAS_SINKS", "CAUSAL"), True),
            "PRECISION": "ieee" if full else "tf32",
            **dict(zip(("KEY_KIND", "KEY_BYTES", "VALUE_KIND", "VALUE_BYTES"), (*kept[0], *kept[1]), strict=True)),
        }
        types = dict.fromkeys(("query", "keys", "values"), kinds[dtype])
        types |= {name: "*u8" for name, (kind, _) in zip(("keys", "values"), kept, strict=True) if kind}
        types |= {"out": "*fp32" if splits > 1 else kinds[dtype], "lse": "*fp32", "sinks": "*fp32"}
        types |= {"scale": "fp32", "softcap": "fp32"}
        types |= dict.fromkeys(("table", "cu_q", "kv_lens", "tile_rows", "tile_firsts", "tile_outs"), "*i32")
        name = f"{str(dtype).removeprefix('torch.')}-{block_m}-{splits}" + ("-packed" if kept != PLAIN else "")
        found[name] = _compile(triton_kernel.attend, types, constants, capability, 8 if block_m >= 128 else 4)
    constants = {"VALUE_DIM": 128, "VALUE_PAD": 128, "SPLITS": 8, "SPLITS_PAD": 8}
    types = {"parts": "*fp32", "part_lses": "*fp32", "out": "*bf16", "lse": "*fp32", "tokens": "*i32"}
    found["merge"] = _compile(triton_kernel.merge, types, constants, capability, 4)
    return found


def _compile(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int, warps: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    looked_at = [p for p in kernel.params if not p.do_not_specialize and p.name not in constants]
    aligned = [p.num for p in looked_at if p.name not in _UNALIGNED]
    source = ASTSource(kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in aligned})
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 2})
    assembly = compiled.asm["ptx"]
    return {
        "code": len(compiled.asm["cubin"]),
        "shared": compiled.metadata.shared,
        "products": assembly.count("wgmma.mma_async") + assembly.count("mma.sync"),
        "copies": assembly.count("cp.async.cg"),
    }


def mend_interpreter() -> None:
    """Let the interpreter of Triton 3.6 read a scalar: it keeps one as an array of one axis, which NumPy from 2.4 on
    does not take for a number."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *rest: Any) -> None:
        patch(tensor, *rest)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patched


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(compile_all(int(sys.argv[1].removeprefix("sm_")))))
    else:
        mend_interpreter()
        errors = {name: error(case) for name, case in CASES.items()}
        others = {"padding": padding(), "branches": branches(), "far": far(), "families": family_errors()}
        print(json.dumps({"cases": errors, **others}))

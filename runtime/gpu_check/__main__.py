"""Checks and measures the runtime on one GPU in under five minutes, with a model of random weights."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from runtime.attention.needs import Needs
from runtime.errors import RuntimeServiceError
from runtime.execution.model_runner import ModelRunner
from runtime.gpu_check import report
from runtime.gpu_check.correctness import check_backends, check_graphs, check_hits, fill_with_noise
from runtime.gpu_check.peaks import peaks
from runtime.gpu_check.plan import FULL, SMALL
from runtime.gpu_check.shapes import SIZES, build
from runtime.gpu_check.speed import measure_decode, measure_first_tokens, measure_prefill, measure_shared, pool_tokens
from runtime.models.loader import pick_device, pick_dtype


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every answer was right, 1 when one was not, 2 for a setting that cannot be had."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s")
    try:
        return _run(options)
    except RuntimeServiceError as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    plan = SMALL if options.small else FULL
    plan = replace(plan, size=options.size or plan.size)
    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    limits = peaks(device, dtype, name)

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    tell(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, {dtype}")
    tell(f"limits ({limits.source}): {limits.bytes_per_s / 1e9:,.0f} GB/s, {limits.flops_per_s / 1e12:,.1f} TFLOP/s")
    found: dict[str, Any] = {"device": name, "dtype": str(dtype), "torch": torch.__version__, "limits": asdict(limits)}
    loaded, costs = build(
        plan.size, device, dtype, attention=options.attention, block_size=options.block_size, tell=tell
    )
    needs = Needs.of(
        loaded.layers, (), device=device, dtype=dtype, kv_format=loaded.kv_format, block_size=options.block_size
    )
    attention = check_backends(needs, plan)
    print(report.backends(attention, loaded.info.attention_backend), flush=True)

    blocks = pool_tokens(loaded, plan) // options.block_size
    graphs_for = 0 if options.no_graphs else max(plan.batches)
    runner = ModelRunner(loaded, blocks, options.block_size, graphs_for=graphs_for)
    fill_with_noise(runner)
    answers = [check_hits(runner, plan), *check_graphs(runner, plan)]
    print(report.logits(answers), flush=True)
    prefill = measure_prefill(runner, costs, limits, plan)
    print(report.prefill(prefill), flush=True)
    decode = measure_decode(runner, costs, limits, plan, began + options.seconds - 60)
    print(report.decode(decode), flush=True)
    shared = measure_shared(runner, plan)
    print(report.shared(shared), flush=True)
    del runner
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    first = measure_first_tokens(loaded, plan, options.block_size)
    print(report.first_tokens(first), flush=True)

    right = all(one.passed for one in attention) and all(one.passed for one in answers)
    found |= {
        "size": plan.size,
        "attention": loaded.info.attention_backend,
        "backends": [asdict(one) for one in attention],
        "logits": [asdict(one) for one in answers],
        "prefill": [asdict(one) for one in prefill],
        "decode": [asdict(one) for one in decode],
        "shared": [asdict(one) for one in shared],
        "first_token": [asdict(one) for one in first],
        "right": right,
        "seconds": time.monotonic() - began,
    }
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print()
    tell("every answer was right" if right else "SOME ANSWERS WERE WRONG: see the tables")
    return 0 if right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N or cpu")
    parser.add_argument("--dtype", default="auto", help="of weights and KV; auto is bfloat16 on a GPU, float32 else")
    parser.add_argument("--size", choices=list(SIZES), help="shape of the model; 7b, or tiny with --small")
    parser.add_argument("--small", action="store_true", help="few and short cases, to run on a CPU in seconds")
    parser.add_argument("--attention", default="auto", metavar="NAME", help="the model's attention back end")
    parser.add_argument("--block-size", type=int, default=16, metavar="TOKENS", help="tokens in a page of KV")
    parser.add_argument("--no-graphs", action="store_true", help="record no CUDA graphs")
    parser.add_argument("--seconds", type=float, default=290, help="leave out decode cases to end about then")
    parser.add_argument("--json", metavar="FILE", help="write the findings there, too")
    parser.add_argument("--verbose", action="store_true", help="print the runtime's log")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""Decode steps recorded as CUDA graphs: one launch instead of hundreds, over a ladder of batch sizes and KV lengths."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.static_step import StaticStep

log = logging.getLogger(__name__)

# Attention kernels settle how they split KV by the longest KV that a graph is for: four times as long is another graph.
FIRST_TOKENS = 2048
LENGTH_STEP = 4
# Kernels allocate workspaces and Triton compiles at the first run; neither may happen while a graph is recorded.
WARM_UPS = 2


class StepRecorder(Protocol):
    """Turns a step over fixed tensors into something that runs it again."""

    def record(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Run `step`, and return what repeats it over the same tensors and gives back the same output tensor."""
        ...


class GraphRecorder:
    """Records on a stream of its own; all graphs share one memory pool, since only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    step()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use CUDA meanwhile: only what this one does is held against the recording. One that
            # fails would leave its stream the thread's current one, but for the block around it.
            with (
                torch.cuda.stream(current),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                output = step()

        def replay() -> torch.Tensor:
            with torch.cuda.device(self._device):
                graph.replay()
            return output

        return replay


class DecodeGraphs:
    """Recorded decode steps.

    Args:
        run: the forward pass, of a plan and the packed rows whose logits are wanted.
        num_blocks: blocks that sequences may own; the one behind them, `num_blocks`, takes what padding writes.
        max_batch, max_tokens: the largest batch and the longest KV to record for.
    """

    def __init__(
        self,
        run: Callable[[StepPlan, torch.Tensor], torch.Tensor],
        recorder: StepRecorder,
        *,
        device: torch.device,
        block_size: int,
        num_blocks: int,
        max_batch: int,
        max_tokens: int,
    ) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._recorded: dict[StaticStep, Callable[[], torch.Tensor]] = {}
        began = time.monotonic()
        # The largest first: the smaller ones then fit into the memory that it took.
        for tokens in reversed(lengths(max_tokens)):
            for batch in reversed(batches(max_batch)):
                step = StaticStep(batch, -(-tokens // block_size), block_size, num_blocks, device)
                self._recorded[step] = recorder.record(lambda step=step: run(step, step.logit_rows))  # type: ignore[misc]
        # The smallest that fits is the first that fits.
        self._steps = sorted(self._recorded, key=lambda step: (step.batch, step.width))
        log.info("recorded %d decode graphs in %.1f s", len(self._steps), time.monotonic() - began)

    def prepare(self, items: Sequence[BatchItem]) -> StaticStep | None:
        """The recorded step for these items, filled; None when none is made for them. Raises InvalidRequest."""
        if not items or any(len(item.tokens) != 1 or item.logit_rows != 1 for item in items):
            return None
        count, blocks = len(items), max(item.start for item in items) // self._block_size + 1
        for step in self._steps:
            if count <= step.batch and blocks <= step.width:
                step.fill(items, self._num_blocks)
                return step
        return None

    def replay(self, step: StaticStep) -> torch.Tensor:
        """Float32 logits `[n, vocab]` of the items that the step was filled with; the next replay overwrites them."""
        return self._recorded[step]()[: step.count]


def batches(most: int) -> list[int]:
    """Powers of two below `most`, and `most`."""
    return [1 << power for power in range((most - 1).bit_length())] + [most]


def lengths(most: int) -> list[int]:
    """KV lengths to record for, each LENGTH_STEP times the one before, up to `most`."""
    found = [min(FIRST_TOKENS, most)]
    while found[-1] < most:
        found.append(min(found[-1] * LENGTH_STEP, most))
    return found


def record_graphs(
    run: Callable[[StepPlan, torch.Tensor], torch.Tensor],
    *,
    device: torch.device,
    fixed_shapes: bool,
    block_size: int,
    num_blocks: int,
    max_batch: int,
    max_tokens: int,
) -> DecodeGraphs | None:
    """Graphs where they can be had; else None, and the log says why: decoding then launches its kernels one by one.

    fixed_shapes: whether attention gives a decode step shapes that depend on its number of rows alone.
    """
    if not fixed_shapes:
        log.warning("no CUDA graphs: with this attention back end every step has shapes of its own")
        return None
    try:
        return DecodeGraphs(
            run,
            GraphRecorder(device),
            device=device,
            block_size=block_size,
            num_blocks=num_blocks,
            max_batch=max_batch,
            max_tokens=max_tokens,
        )
    except RuntimeError as error:
        log.warning("no CUDA graphs: recording failed: %s", error)
        return None

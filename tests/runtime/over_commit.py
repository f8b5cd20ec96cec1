"""Recorded loops in a pool that is too small for them, through the real engine and through `radix-runtime simulate`.

    python -m tests.runtime.over_commit TRACE [--sessions 24] [--pool-share 0.25] [--max-context 4000]

A tiny model of random weights writes the replies, and each prompt holds what it wrote. Prints what was found in the
cache and what was computed, with everybody let in and with sessions held back.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.scheduling.loop_simulation import LoopSimulation, working_set
from runtime.scheduling.loop_traces import Loop, read_loops
from runtime.scheduling.program_door import ProgramDoor
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.step_time import StepCost
from tests.runtime.engine_harness import Harness, running
from tests.tiny_llama import save_tiny_llama

BLOCK_SIZE = 16
HOLD_BACK_S = 120.0
# Ids that the tiny model's vocabulary has beside its special tokens.
FIRST_ID, IDS = 6, 250
COST = StepCost(0.008, 0.00084, 1.47e-6, 5e-4, 1.74e-7)


def live(loaded: LoadedModel, loops: list[Loop], blocks: int, hold_back_s: float) -> str:
    with running(loaded, num_blocks=blocks, block_size=BLOCK_SIZE, kv_fill=0.0, hold_back_s=hold_back_s) as harness:
        threads = [threading.Thread(target=write, args=(harness, loop, str(i))) for i, loop in enumerate(loops)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall_s, counted = time.perf_counter() - begun, harness.engine.counters
        hit_rate = counted.hit_tokens / counted.lookup_tokens
        return f"hit rate {hit_rate:.3f}, {counted.computed_tokens} tokens computed, wall {wall_s:.1f} s"


def write(harness: Harness, loop: Loop, name: str) -> None:
    """The calls of one loop, each with what the model wrote before in place of what was recorded."""
    history: list[int] = []
    recorded = 0
    for call in loop:
        history += (call.prompt[recorded:] % IDS + FIRST_ID).tolist()
        history += harness.run(history, max_tokens=len(call.output), program=name).tokens
        recorded = call.length + len(call.output)
        time.sleep(call.pause_s)


def simulated(loops: list[Loop], blocks: int, hold_back_s: float) -> str:
    outcome = LoopSimulation(
        loops,
        [0.0] * len(loops),
        COST,
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        scheduler=lambda store, counters, clock: Scheduler(
            store,
            counters,
            max_batch_tokens=512,
            max_running=32,
            explain_across=False,
            door=ProgramDoor(blocks * BLOCK_SIZE, clock, wait_s=hold_back_s) if hold_back_s else None,
            clock=clock,
        ),
    ).run()
    return f"hit rate {outcome.hit_rate:.3f}, {outcome.counters.computed_tokens} tokens computed"


def main(trace: Path, sessions: int, pool_share: float, max_context: int) -> None:
    # The tiny model is so much faster than the formula that pauses are shorter, too.
    timing = {"pause_s": 0.1, "longest_pause_s": 0.1}
    loops = read_loops(trace, sessions, max_context=max_context, **timing)
    blocks = int(working_set(loops, BLOCK_SIZE) * pool_share)
    print(f"{len(loops)} sessions, {sum(map(len, loops))} calls, pool of {blocks} blocks")
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_llama(Path(folder))
        loaded = load_model(folder, dtype="fp32", device="cpu")
        for name, hold_back_s in (("all let in", 0.0), ("held back", HOLD_BACK_S)):
            print(f"{name}, simulated: {simulated(loops, blocks, hold_back_s)}", flush=True)
            print(f"{name}, live: {live(loaded, loops, blocks, hold_back_s)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--pool-share", type=float, default=0.25)
    parser.add_argument("--max-context", type=int, default=4000)
    given = parser.parse_args()
    main(given.trace, given.sessions, given.pool_share, given.max_context)

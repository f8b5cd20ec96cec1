"""`radix-runtime simulate`: options and table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radix.output import JSON_HELP, check_json_target, write_json
from runtime.scheduling.scheduling_order import DEFAULT_PASSES, ORDERS

if TYPE_CHECKING:
    from runtime.scheduling.loop_simulation import Outcome
    from runtime.scheduling.loop_traces import Loop

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class _Case:
    order: str
    pool_share: float
    hold_back_s: float
    pool_tokens: int


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Chats or claude-code hash ids, .jsonl.gz.")],
    sessions: Annotated[int, typer.Option(min=1, metavar="N", help="The first N of the file.")] = 100,
    gap_s: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Mean time between the beginnings of two; 0: all at once.")
    ] = 0.0,
    pause_s: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Mean pause between calls, where the file has none.")
    ] = 2.0,
    longest_pause_s: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Recorded pauses are cut to this.")
    ] = 30.0,
    max_context: Annotated[int, typer.Option(min=2, metavar="TOKENS", help="A session ends before it.")] = 8192,
    order: Annotated[str, typer.Option(metavar="NAME,...", help="Orders of serve's --order.")] = ",".join(ORDERS),
    passes: Annotated[int, typer.Option(min=0, metavar="N", help="As for serve's --order-passes.")] = DEFAULT_PASSES,
    pool_share: Annotated[
        str, typer.Option(metavar="SHARE,...", help="Pool sizes, as shares of all that the sessions send and write.")
    ] = "1",
    hold_back_s: Annotated[
        str, typer.Option(metavar="SECONDS,...", help="As for serve's --hold-back-seconds.")
    ] = "0,120",
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="As for serve.")] = 32,
    max_batch_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="As for serve.")] = 512,
    max_itl_ms: Annotated[
        float | None, typer.Option(min=0.001, metavar="MS", show_default=False, help="As for serve.")
    ] = None,
    cost: Annotated[
        str,
        typer.Option(
            metavar="S,S,S,S,S",
            help="Seconds of a step, and more of it for each: decoding row, token it attends to, prompt token, pair of "
            "a prompt token and one it attends to. The default is about SmolLM2 on two cores.",
        ),
    ] = "0.008,0.00084,1.47e-6,5e-4,1.74e-7",
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Run recorded sessions in virtual time through the real scheduler and store, with a formula for the model.

    Prints how long whole sessions took (job completion time), their calls, first tokens and gaps, and the hit rate.

    Examples:

        radix-runtime simulate sessions.jsonl.gz --max-running 8

        radix-runtime simulate sessions.jsonl.gz --order fcfs --pool-share 1,0.5,0.25 --json -
    """
    from rich.console import Console
    from rich.table import Table

    check_json_target(json)
    unknown = [name for name in order.split(",") if name not in ORDERS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ORDERS)}", param_hint="--order")
    seconds = _numbers(cost, "--cost")
    if len(seconds) != 5:
        raise typer.BadParameter("must be five numbers", param_hint="--cost")
    from runtime.errors import RuntimeServiceError
    from runtime.scheduling.loop_simulation import working_set
    from runtime.scheduling.loop_traces import read_loops
    from runtime.scheduling.step_time import StepCost

    try:
        loops = read_loops(trace, sessions, pause_s=pause_s, longest_pause_s=longest_pause_s, max_context=max_context)
    except (OSError, ValueError, KeyError, TypeError, RuntimeServiceError) as error:
        raise typer.BadParameter(str(error), param_hint="TRACE") from None
    needed = working_set(loops, BLOCK_SIZE)
    results = []
    for case in _cases(order, pool_share, hold_back_s, needed):
        outcome = _run(
            loops,
            case,
            StepCost(*seconds),
            gap_s,
            passes=passes,
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            max_itl_s=None if max_itl_ms is None else max_itl_ms / 1000,
        )
        results.append({**asdict(case), **_figures(outcome)})
    if json is not None:
        write_json(json, results)
    if json != "-":
        table = Table(*(name.replace("_", " ") for name in results[0]))
        for row in results:
            table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
        Console().print(table)


def _cases(order: str, pool_share: str, hold_back_s: str, needed: int) -> Iterator[_Case]:
    for share in _numbers(pool_share, "--pool-share"):
        for name in order.split(","):
            for held in _numbers(hold_back_s, "--hold-back-s"):
                yield _Case(name, share, held, max(1, int(share * needed)) * BLOCK_SIZE)


def _numbers(text: str, hint: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: must be numbers with commas between them", param_hint=hint) from None
    if min(values) < 0:
        raise typer.BadParameter(f"{text!r}: must be at least 0", param_hint=hint)
    return values


def _run(loops: list[Loop], case: _Case, cost: Any, gap_s: float, **settings: Any) -> Outcome:
    from runtime.scheduling.loop_simulation import LoopSimulation, arrivals
    from runtime.scheduling.program_door import ProgramDoor
    from runtime.scheduling.scheduler import Scheduler

    def scheduler(store: Any, counters: Any, clock: Any) -> Scheduler:
        door = ProgramDoor(case.pool_tokens, clock, wait_s=case.hold_back_s) if case.hold_back_s else None
        return Scheduler(store, counters, explain_across=False, order=case.order, door=door, clock=clock, **settings)

    begins = arrivals(len(loops), gap_s)
    blocks = case.pool_tokens // BLOCK_SIZE
    return LoopSimulation(loops, begins, cost, num_blocks=blocks, block_size=BLOCK_SIZE, scheduler=scheduler).run()


def _figures(outcome: Outcome) -> dict[str, float | int]:
    import numpy as np

    figures: dict[str, float | int] = {}
    for name, values in (("session", outcome.loop_s), ("call", outcome.call_s), ("ttft", outcome.ttft_s)):
        figures[f"{name}_mean_s"] = float(np.mean(values))
        figures[f"{name}_p50_s"], figures[f"{name}_p95_s"] = np.percentile(values, [50, 95]).tolist()
    figures["itl_p95_s"] = float(np.percentile(outcome.itl_s, 95)) if outcome.itl_s else 0.0
    figures["hit_rate"] = outcome.hit_rate
    figures["wall_s"] = outcome.wall_s
    figures["preemptions"] = outcome.counters.preemptions
    return figures

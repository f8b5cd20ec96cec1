"""One trace, one or two runs, one report."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..aio import AsyncRadixClient
from ..errors import RadixloopError, Unavailable
from ..prompts import Prompt
from ..traces import Trace
from .driver import Driver
from .live import LiveDriver
from .options import ReplayOptions
from .plan import PlannedSession, choose_sessions, plan
from .records import CallRecord, Run
from .summary import ratios, summarise

REPORT_VERSION = 1


async def _nothing(run: Run) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """Called as the experiment goes on: a run begins with so many calls ahead, a call came to its end, a run did.

    What `on_ran` does is awaited before the next run begins, whose figures it then cannot disturb.
    """

    on_run: Callable[[str, int], None] = lambda name, calls: None
    on_call: Callable[[CallRecord], None] = lambda record: None
    on_ran: Callable[[Run], Awaitable[None]] = _nothing


async def experiment(
    client: AsyncRadixClient,
    trace: Trace,
    options: ReplayOptions,
    *,
    title: str,
    runs: tuple[str, ...] = ("cached",),
    sessions: int | None = None,
    seed: int | None = None,
    salt: str | None = None,
    flush: bool = False,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Replays `trace` once for each of `runs` ("cached", "no_cache") and returns the JSON-ready report.

    Every run has a cache namespace of its own, so it starts cold, unless `salt` names one. `flush` empties the
    runtime's whole cache before each run. Cancelling ends the run in progress and reports what there is.
    Raises RadixloopError when the runtime cannot be asked what it serves.
    """
    hooks = hooks or Hooks()
    model = await client.model_info()
    options = replace(options, max_context=min(options.max_context or model.context_length, model.context_length))
    planned = await planned_sessions(client, trace, options, sessions, seed)
    done: list[Run] = []
    for name in runs:
        hooks.on_run(name, sum(session.calls for session in planned))
        if flush:
            await client.flush(all_namespaces=True)
        done.append(await _run(client, name, planned, options, salt or f"replay-{uuid.uuid4().hex[:12]}", hooks))
        await hooks.on_ran(done[-1])
        if done[-1].interrupted:
            break
    summaries = [summarise(run) for run in done]
    by_name = {summary["name"]: summary for summary in summaries}
    both = {"no_cache", "cached"} <= by_name.keys()
    return {
        "format": "radixloop-replay-report",
        "version": REPORT_VERSION,
        "trace": title,
        "trace_format": trace.format,
        "target": client.target,
        "model": model.model,
        "kv_dtype": model.kv_dtype,
        "template_drifts": [asdict(drift) for drift in model.template_drifts],
        "options": {**asdict(options), "sessions": sessions, "seed": seed, "salt": salt, "flush": flush},
        "notes": list(trace.notes),
        "runs": summaries,
        "ratios": ratios(by_name["no_cache"], by_name["cached"]) if both else None,
    }


async def planned_sessions(
    client: AsyncRadixClient, trace: Trace, options: ReplayOptions, sessions: int | None, seed: int | None
) -> list[PlannedSession]:
    """The sessions to replay and which of their calls fit `options.max_context` as the runtime counts tokens."""

    async def count_tokens(prompt: Prompt) -> int:
        try:
            return (await client.tokenize(prompt, plain=True)).count
        except Unavailable:
            raise
        except RadixloopError:
            # A prompt that the runtime refuses is sent all the same, so that its call fails with the reason.
            return 0

    # Replies of the model's own make other prompts than the recorded ones: those are measured as they come.
    known_ahead = not (options.live_replies or options.server_sessions)
    limit = options.max_context - options.output_tokens if known_ahead and options.max_context else None
    return await plan(choose_sessions(trace, sessions, seed), trace, limit, count_tokens)


async def _run(
    client: AsyncRadixClient,
    name: str,
    planned: list[PlannedSession],
    options: ReplayOptions,
    salt: str,
    hooks: Hooks,
) -> Run:
    before = await client.stats()
    # The runtime's sessions hold what it wrote, so they make every run a live one.
    kind = LiveDriver if options.live_replies or options.server_sessions else Driver
    driver = kind(client, options, salt=salt, use_cache=name != "no_cache", on_call=hooks.on_call)
    run = await driver.run(name, planned)
    try:
        after = await client.stats()
    except RadixloopError:
        # The runtime went away during the run: what the calls noted is still worth reporting.
        return run
    run.evicted_tokens = after.evicted_tokens_total - before.evicted_tokens_total
    run.copied_tokens = after.copied_tokens_total - before.copied_tokens_total
    run.preemptions = after.preemptions_total - before.preemptions_total
    return run

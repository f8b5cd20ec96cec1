"""What a step costs: the host's part of it, decode by batch size, and prefill.

The real engine runs on a pool that is full of agents' histories, with the books that serving keeps (changes for Redis,
KV events, the history behind verdicts) and with readers of the streams in a thread of their own. Contexts are put into
the store without a forward pass, so their KV is made up; a step takes the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from radix import Namespace, PrefixStore
from radix.bench import machine
from runtime.bench_load import Ints, Prompts, Readers, fill, remember
from runtime.engine import Engine
from runtime.engine_config import EngineConfig
from runtime.models.loaded_model import LoadedModel
from runtime.monitoring.step_clock import FORWARD, PARTS, StepRecord
from runtime.publishing.kv_events import KvEventHub
from runtime.publishing.tree_mirror import TreeMirror
from runtime.request import GenerateJob
from runtime.sampling.sampling_params import SamplingParams
from runtime.tiers.settings import TierSettings

HOST_BATCH = 8
# Of a shared context, what each row has to itself.
TAIL_TOKENS = 128
# The first steps of a case admit its requests and meet cold caches.
WARM_UP_STEPS = 4
# As the publisher does.
READ_CHANGES_EVERY_S = 0.5
_HEAD_TOKENS = 16
# What the KV of contexts is made of. Unwritten, it would be a single zero page in the processor's cache.
_KV = 0.01


@dataclass(frozen=True)
class BenchConfig:
    """What is measured.

    Attributes:
        pool_tokens: size of the KV pool.
        context: tokens that each decoding sequence has.
        batches: decode batch sizes.
        steps: decode steps a case.
        chunk: tokens of a prefill step.
        prefills: prefill steps a case.
        temperature: of all requests; 0 is greedy.
        host_bytes: of a host tier behind the pool, which is full from the start; 0 is none.
    """

    pool_tokens: int = 100_000
    block_size: int = 16
    context: int = 2_048
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    steps: int = 40
    chunk: int = 512
    prefills: int = 4
    temperature: float = 0.0
    host_bytes: int = 0


@dataclass(frozen=True)
class _Case:
    batch: int
    shared: bool

    @property
    def name(self) -> str:
        return f"decode, batch {self.batch}, {'shared' if self.shared else 'separate'} contexts"


class Bench:
    """One engine under measurement; see `run`."""

    def __init__(self, loaded: LoadedModel, config: BenchConfig) -> None:
        self._config = config
        self._prompts = Prompts(loaded.info.vocab_size)
        self._namespace = Namespace(loaded.info.fingerprint)
        self._records: list[StepRecord] = []
        self.engine = Engine(
            loaded,
            EngineConfig(
                num_blocks=config.pool_tokens // config.block_size,
                block_size=config.block_size,
                max_batch_tokens=config.chunk,
                max_running=max(config.batches),
                record_events=True,
                tiers=TierSettings(host_bytes=config.host_bytes),
            ),
        )
        self.engine.after_step.append(KvEventHub("bench").collect)
        self.engine.on_step.append(self._records.append)

    @contextmanager
    def running(self) -> Iterator[Readers]:
        """The engine's thread, the readers', and one that reads the store's changes as the publisher does."""
        done = threading.Event()
        mirror = TreeMirror(lambda ids: "")

        def publish() -> None:
            while not done.wait(READ_CHANGES_EVERY_S):
                upserted, removed = self.engine.call(lambda store: store.changes(_HEAD_TOKENS)).result()
                mirror.apply(upserted, removed, 0.0)
                mirror.take_change()

        publisher = threading.Thread(target=publish, name="publisher", daemon=True)
        self.engine.start()
        try:
            with Readers(self.engine) as readers:
                self.engine.call(lambda store: fill(store, self._prompts, self._namespace)).result()
                publisher.start()
                yield readers
        finally:
            done.set()
            self.engine.shutdown(0)
            publisher.join()

    def decode(self, readers: Readers, contexts: Sequence[Ints], steps: int) -> list[StepRecord]:
        """Steps that decode one token of each context, those of the warm-up left out."""
        for tokens in contexts:
            self._remember(tokens)
        records = self._run(readers, contexts, max_tokens=WARM_UP_STEPS + steps)
        batch = len(contexts)
        return [r for r in records if r.sequences == r.tokens == batch][WARM_UP_STEPS:]

    def prefill(self, readers: Readers, prefix: Ints) -> StepRecord:
        """The step that computes a chunk after `prefix`, which is cached."""
        if len(prefix):
            self._remember(prefix)
        prompt = np.concatenate([prefix, self._prompts.tokens(self._config.chunk)])
        return next(r for r in self._run(readers, [prompt], max_tokens=1) if r.tokens == self._config.chunk)

    def contexts(self, count: int, *, shared: bool) -> list[Ints]:
        """Prompts of the context's length."""
        length = self._config.context
        tail = min(TAIL_TOKENS, length // 2) if shared else length
        head = self._prompts.tokens(length - tail)
        return [np.concatenate([head, self._prompts.tokens(tail)]) for _ in range(count)]

    def _remember(self, tokens: Ints) -> None:
        def write(store: PrefixStore) -> None:
            blocks = torch.from_numpy(remember(store, tokens, self._namespace, prompt=len(tokens)))
            for kv in self.engine.kv_pool.layers.values():
                kv.keys[blocks] = _KV
                kv.values[blocks] = _KV

        needed = -(-len(tokens) // self._config.block_size)

        def has_room(store: PrefixStore) -> bool:
            store.evict(max(0, needed - store.free_blocks - store.leaving_blocks))
            return store.free_blocks >= needed

        # What goes down to a tier comes free a moment later.
        while not self.engine.call(has_room).result():
            time.sleep(0.001)
        self.engine.call(write).result()

    def _run(self, readers: Readers, prompts: Sequence[Ints], max_tokens: int) -> list[StepRecord]:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=self._config.temperature, ignore_eos=True)
        self._records.clear()
        jobs = [GenerateJob(f"bench-{i}", tokens, self._namespace, sampling) for i, tokens in enumerate(prompts)]
        submitted = threading.Event()
        # All of them begin in the same step.
        self.engine.call(lambda store: submitted.wait())
        try:
            streams = [readers.start(job) for job in jobs]
        finally:
            submitted.set()
        for stream in streams:
            stream.result()
        # What runs on the engine's thread now comes after the record of the last step.
        self.engine.call(lambda store: None).result()
        return self._records.copy()


def run(loaded: LoadedModel, config: BenchConfig, on_progress: Callable[[float, str], None]) -> dict[str, Any]:
    """Measure everything; `on_progress` is told the share that is done and what comes next.

    Returns JSON-able figures. Times are of whole steps, hooks and streams included:

        host_ms_per_step: mean at batch 8, everything but the forward pass; `host_parts_ms` adds up to it.
        decode_ms: median by kind of context and batch size.
        prefill_tokens_per_s: of a chunk at the start of a prompt, and of one behind a cached context.
    """
    bench = Bench(loaded, config)
    cases = [_Case(batch, shared) for shared in (False, True) for batch in config.batches]
    work = [case.batch + 8 for case in cases]
    total, done = sum(work) + 2 * 8, 0
    decode_ms: dict[str, dict[str, float]] = {"separate": {}, "shared": {}}
    hosts: list[StepRecord] = []
    with bench.running() as readers:
        on_progress(0, "warming up")
        bench.prefill(readers, bench.contexts(1, shared=False)[0])
        prefill = {}
        for name, prefixes in (("cold", 0), ("behind_context", 1)):
            on_progress(done / total, f"prefill, {name.replace('_', ' a ')}")
            prefix = bench.contexts(1, shared=False)[0][: prefixes * config.context]
            seconds = [bench.prefill(readers, prefix).total_s for _ in range(config.prefills)]
            prefill[name] = round(config.chunk / median(seconds), 1)
            done += 8
        contexts = {shared: bench.contexts(max(config.batches), shared=shared) for shared in (False, True)}
        for case, share in zip(cases, work, strict=True):
            on_progress(done / total, case.name)
            records = bench.decode(readers, contexts[case.shared][: case.batch], config.steps)
            decode_ms["shared" if case.shared else "separate"][str(case.batch)] = _ms(
                median(r.total_s for r in records)
            )
            if case.batch == HOST_BATCH:
                hosts += records
            done += share
    on_progress(1, "done")
    return {
        "machine": {**machine(), "torch": torch.__version__, "threads": torch.get_num_threads()},
        "model": loaded.info.name,
        "dtype": loaded.info.dtype,
        "kv_dtype": loaded.info.kv_dtype,
        "device": loaded.info.device,
        "attention_backend": loaded.info.attention_backend,
        "weights": loaded.info.weights,
        "config": asdict(config),
        **_host(hosts),
        "decode_ms": decode_ms,
        "prefill_tokens_per_s": prefill,
    }


def _host(records: list[StepRecord]) -> dict[str, Any]:
    if not records:
        return {}
    host = sorted(record.host_s for record in records)
    parts = {part: _ms(fmean(record.seconds[part] for record in records)) for part in PARTS if part != FORWARD}
    return {
        "host_batch": HOST_BATCH,
        "host_steps": len(records),
        "host_ms_per_step": _ms(fmean(host)),
        "host_ms_p50": _ms(median(host)),
        "host_ms_p95": _ms(host[int(len(host) * 0.95)]),
        "host_parts_ms": parts,
        "forward_ms": _ms(fmean(record.seconds[FORWARD] for record in records)),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)

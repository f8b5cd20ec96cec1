"""What deterministic mode promises: one prompt, one answer, to the last bit of every log-probability.

Each case runs the same prompts another way and compares with what each answered alone, cold, in an engine of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runtime.models.loaded_model import LoadedModel
from tests.runtime.engine_harness import Harness, Reply, running
from tests.runtime.token_equality import BLOCK, salted

# A few dozen numbers a token: a difference in any layer reaches them.
TOP = 20

# Every token with its log-probability and its likeliest rivals'.
Bits = list[tuple[int, float, tuple[tuple[int, float], ...]]]


@dataclass(frozen=True)
class BitWork:
    """Prompts, and what each answers alone.

    n: tokens that each answers. hit_lengths: how much of a prompt is cached before it comes.
    """

    loaded: LoadedModel
    prompts: list[list[int]]
    expected: list[Bits]
    n: int
    hit_lengths: list[int]


def bits(reply: Reply, index: int = 0) -> Bits:
    reply.finished  # noqa: B018
    return [(t.token_id, t.logprob or 0.0, t.top) for delta in reply.deltas(index) for t in delta.logprobs]


def asking(harness: Harness, tokens: list[int], max_tokens: int, **more: Any) -> Reply:
    return harness.submit(tokens, max_tokens=max_tokens, logprobs=True, top_logprobs=TOP, **more)


def bit_work(loaded: LoadedModel, lengths: list[int], n: int, hit_lengths: list[int], shared: int = 40) -> BitWork:
    """Random prompts of these lengths that begin with the same `shared` tokens."""
    random = np.random.default_rng(21)
    head = random.integers(10, 250, shared).tolist()
    prompts = [head + random.integers(10, 250, length - shared).tolist() for length in lengths]
    expected = []
    for tokens in prompts:
        with running(loaded, num_blocks=512) as harness:
            expected.append(bits(asking(harness, tokens, n)))
            assert len(expected[-1]) == n
    return BitWork(loaded, prompts, expected, n, hit_lengths)


def check_all(work: BitWork, replies: list[Reply]) -> None:
    for index, reply in enumerate(replies):
        assert bits(reply) == work.expected[index], f"prompt {index}"


def ask_all(harness: Harness, work: BitWork, *, apart: bool = False) -> list[Reply]:
    names = [salted(harness, i) if apart else None for i in range(len(work.prompts))]
    return [asking(harness, p, work.n, namespace=name) for p, name in zip(work.prompts, names, strict=True)]


def warm_and_warm_again(work: BitWork) -> None:
    with running(work.loaded) as harness:
        for times in range(3):
            replies = []
            for tokens in work.prompts:
                replies.append(asking(harness, tokens, work.n))
                replies[-1].wait()
            check_all(work, replies)
            if times:
                assert [r.started.usage.cached_tokens for r in replies] == [len(p) - 1 for p in work.prompts]


def every_length_of_a_hit(work: BitWork) -> None:
    with running(work.loaded, num_blocks=2048) as harness:
        for length in work.hit_lengths:
            index = length % len(work.prompts)
            tokens, name = work.prompts[index], salted(harness, length)
            harness.run([*tokens[:length], tokens[length] + 1, 5], prefill_only=True, namespace=name)
            reply = asking(harness, tokens, work.n, namespace=name)
            assert bits(reply) == work.expected[index], f"a hit of {length}"
            assert reply.started.usage.cached_tokens == length


def together_cold(work: BitWork) -> None:
    with running(work.loaded, max_running=8) as harness:
        check_all(work, ask_all(harness, work, apart=True))


def together_over_a_shared_beginning(work: BitWork) -> None:
    with running(work.loaded, max_running=8) as harness:
        replies = ask_all(harness, work)
        check_all(work, replies)
        assert sum(reply.started.usage.cached_tokens for reply in replies) > 0


def in_chunks_of_1(work: BitWork) -> None:
    few = replace(work, prompts=work.prompts[::2][:2], expected=work.expected[::2][:2])
    with running(work.loaded, max_batch_tokens=1, max_running=1) as harness:
        check_all(few, ask_all(harness, few, apart=True))


def in_chunks_of_7(work: BitWork) -> None:
    with running(work.loaded, max_batch_tokens=7, max_running=8) as harness:
        check_all(work, ask_all(harness, work, apart=True))


def in_other_blocks(work: BitWork) -> None:
    with running(work.loaded, block_size=5, num_blocks=2048) as harness:
        check_all(work, ask_all(harness, work))


def after_eviction(work: BitWork) -> None:
    with running(work.loaded) as harness:
        check_all(work, ask_all(harness, work))
        harness.evict_all()
        assert harness.check().cached_tokens == 0
        check_all(work, ask_all(harness, work))


def preempted(work: BitWork) -> None:
    blocks = 1 + sum(-(-len(p) // BLOCK) for p in work.prompts[:4])
    with running(work.loaded, num_blocks=blocks, max_running=8) as harness:
        check_all(work, ask_all(harness, work, apart=True))
        assert harness.engine.counters.preemptions > 0


def forked(work: BitWork) -> None:
    with running(work.loaded, num_blocks=2048) as harness:
        for index, tokens in enumerate(work.prompts):
            reply = asking(harness, tokens, work.n, n=2)
            assert bits(reply, 0) == bits(reply, 1) == work.expected[index]


def a_next_turn_over_what_was_written(work: BitWork) -> None:
    """The next turn hits on KV that decoding wrote; cold, its whole prompt is prefilled."""
    with running(work.loaded) as harness:
        for index, tokens in enumerate(work.prompts[:3]):
            written = [token for token, _, _ in work.expected[index]]
            turn = [*tokens, *written, 17, 18, 19]
            cold = bits(asking(harness, turn, work.n, bypass_cache=True))
            harness.run(tokens, max_tokens=work.n)
            warm = asking(harness, turn, work.n)
            assert bits(warm) == cold
            assert warm.started.usage.cached_tokens == len(tokens) + work.n - 1


CASES = [
    warm_and_warm_again,
    every_length_of_a_hit,
    together_cold,
    together_over_a_shared_beginning,
    in_chunks_of_1,
    in_chunks_of_7,
    in_other_blocks,
    after_eviction,
    preempted,
    forked,
    a_next_turn_over_what_was_written,
]

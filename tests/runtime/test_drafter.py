"""Drafts in the engine: whatever they guess, the answer is the one without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import Namespace
from runtime.attention.deterministic import SEGMENT
from runtime.drafting.drafts import Draft, DraftSettings, DraftSource
from runtime.events import DeltaEvent
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.request import Run
from runtime.sampling.sampler import TokenSampler
from tests.runtime.bit_equality import ask_all, bit_work, check_all
from tests.runtime.engine_harness import Harness, Reply, prompt, running
from tests.runtime.token_equality import CASES, Workload, chunks_of_one, workload

Guess = Callable[[Run, int], list[int]]

ALL = frozenset(DraftSource)
FORCED = DraftSettings(ALL, longest=8, adaptive=False)
TREE = DraftSettings(frozenset({DraftSource.TREE}), longest=8, adaptive=False)


def guessing(harness: Harness, guess: Guess, longest: int) -> None:
    """Have the drafter believe `guess(run, n)`, the next `n` tokens of a run."""

    def find(run: Run) -> Draft | None:
        n = min(longest, run.request.max_tokens - len(run.output.token_ids) - 1)
        tokens = guess(run, n)[:n] if n > 0 else []
        return Draft(np.array(tokens, dtype=np.int32), DraftSource.LOOKUP, 4) if tokens else None

    drafter = harness.engine._drafter
    assert drafter is not None
    drafter._find = find  # type: ignore[method-assign]


def right(answer: list[int]) -> Guess:
    return lambda run, n: answer[len(run.output.token_ids) :][:n]


def wrong(answer: list[int]) -> Guess:
    return lambda run, n: [(token + 1) % 200 for token in right(answer)(run, n)]


def mixed(answer: list[int]) -> Guess:
    """Right for as many tokens as a draw says, then wrong."""
    random = np.random.default_rng(5)

    def guess(run: Run, n: int) -> list[int]:
        good = int(random.integers(0, n + 1))
        return right(answer)(run, n)[:good] + wrong(answer)(run, n)[good:]

    return guess


@pytest.fixture(scope="module")
def work(tiny: LoadedModel) -> Workload:
    return replace(workload(tiny, count=12, n=24), config={"drafts": FORCED})


@pytest.mark.parametrize("case", [case for case in CASES if case is not chunks_of_one])
def test_greedy_tokens_are_those_of_transformers(work: Workload, case: Callable[[Workload], None]) -> None:
    case(work)


@pytest.mark.parametrize("guess", [right, wrong, mixed])
@pytest.mark.parametrize("longest", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5, 6, 7)), 8])
def test_whatever_a_draft_guesses_tokens_cache_and_later_turns_stay(
    tiny: LoadedModel, guess: Callable[[list[int]], Guess], longest: int
) -> None:
    first, more = prompt(37), prompt(9, 1)
    with running(tiny) as harness:
        plain = harness.run(first, max_tokens=41).tokens
        harness.flush()
        then = harness.run(first + plain + more, max_tokens=11).tokens
    with running(tiny, drafts=FORCED) as harness:
        guessing(harness, guess(plain), longest)
        assert harness.run(first, max_tokens=41).tokens == plain
        books = harness.engine.counters
        if guess is right:
            assert books.accepted_draft_tokens == books.draft_tokens > 0
            assert books.steps == -(-41 // (longest + 1))
        if guess is wrong:
            assert books.accepted_draft_tokens == 0 < books.draft_tokens
        assert books.output_tokens == 41
        match = harness.engine.call(lambda store: store.match(first + plain, harness.namespace)).result()
        assert match == 37 + 41 - 1
        # What is cached now was computed beside guesses: it must be as good as computed without.
        guessing(harness, wrong(then), longest)
        again = harness.run(first + plain + more, max_tokens=11)
        assert again.started.usage.cached_tokens == 37 + 41 - 1
        assert again.tokens == then


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.9},
        {"temperature": 1.2, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
        {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.7, "logit_bias": {20: 3.0}},
        {"logprobs": True, "top_logprobs": 3},
        {"temperature": 0.8, "n": 3},
    ],
)
@pytest.mark.parametrize("guess", [right, mixed])
def test_the_tokens_of_a_seed_are_those_without_drafts(
    tiny: LoadedModel, sampling: dict[str, Any], guess: Callable[[list[int]], Guess]
) -> None:
    tokens = prompt(30)
    with running(tiny) as harness:
        plain = harness.run(tokens, max_tokens=33, seed=11, **sampling)
    with running(tiny, drafts=FORCED) as harness:
        answers = plain.finished.outputs

        def by_choice(run: Run, n: int) -> list[int]:
            return guesses[run.output.index](run, n)

        guesses = [guess(list(answer)) for answer in answers]
        guessing(harness, by_choice, 6)
        drafted = harness.run(tokens, max_tokens=33, seed=11, **sampling)
        assert harness.engine.counters.accepted_draft_tokens > 20
    assert drafted.finished.outputs == answers
    for index in range(len(answers)):
        assert drafted.text(index) == plain.text(index)
        before, after = logprobs(plain, index), logprobs(drafted, index)
        assert [token for token, _ in after] == [token for token, _ in before]
        assert [value for _, value in after] == pytest.approx([value for _, value in before], abs=1e-3)


def logprobs(reply: Reply, index: int) -> list[tuple[int, float]]:
    return [
        pair for delta in reply.deltas(index) for token in delta.logprobs for pair in ((-1, token.logprob), *token.top)
    ]


def ending(reply: Reply) -> tuple[list[int], str, object, object]:
    last = reply.finished and reply.deltas()[-1]
    return reply.tokens, reply.text(), last.finish_reason, last.stopped_by


@pytest.mark.parametrize("stop", ["text", "token", "eos", "length"])
def test_nothing_is_said_or_cached_past_a_stop_inside_a_draft(tiny: LoadedModel, stop: str) -> None:
    tokens = prompt(30)
    with running(tiny) as harness:
        free = harness.run(tokens, max_tokens=30)
        at = 13
        how: dict[str, Any] = {"max_tokens": 30}
        if stop == "text":
            text = "".join(delta.text for delta in free.deltas()[at - 2 : at + 1])
            how["stop"] = (text,)
        elif stop == "token":
            how["stop_token_ids"] = (free.tokens[at],)
        elif stop == "eos":
            how |= {"ignore_eos": False, "logit_bias": {tiny.info.eos_token_ids[0]: 4.0}}
        else:
            how["max_tokens"] = at + 1
        plain = harness.run(tokens, **how)
        assert 8 < len(plain.tokens) < 30
    with running(tiny, drafts=FORCED) as harness:
        guessing(harness, right([*plain.tokens, *free.tokens]), 7)
        drafted = harness.run(tokens, **how)
        assert ending(drafted) == ending(plain)
        n = len(drafted.tokens)
        assert harness.engine.counters.output_tokens == n
        found = harness.engine.call(
            lambda store: store.match(tokens + plain.tokens + free.tokens, harness.namespace)
        ).result()
        assert found == 30 + n - 1


def test_a_replay_is_drafted_from_the_tree(tiny: LoadedModel) -> None:
    tokens = prompt(50)
    with running(tiny, drafts=TREE) as harness:
        first = harness.run(tokens, max_tokens=40)
        books = harness.engine.counters
        assert books.draft_tokens == 0
        before = books.steps
        assert harness.run(tokens, max_tokens=40).tokens == first.tokens
        # The last known token was never cached: no draft reaches past the one before it.
        assert books.accepted_draft_tokens == books.draft_tokens >= 32
        assert books.steps - before == 1 + 39 // 9


def test_another_namespace_is_no_source_of_drafts(tiny: LoadedModel) -> None:
    tokens = prompt(50)
    names = [Namespace(tiny.info.fingerprint, salt=salt) for salt in ("a", "b", None)]
    with running(tiny, drafts=TREE) as harness:
        answers = [harness.run(tokens, max_tokens=20, namespace=name).tokens for name in names]
        answers.append(harness.run(tokens, max_tokens=20, bypass_cache=True).tokens)
        assert answers == answers[:1] * 4
        assert harness.engine.counters.draft_tokens == 0


def test_a_draft_makes_nobody_give_way_and_needs_no_room_of_its_own(tiny: LoadedModel) -> None:
    # Prompt and answer fill the pool to the last slot.
    blocks = 8
    tokens = prompt(60)
    with running(tiny) as harness:
        plain = harness.run(tokens, max_tokens=69).tokens
    with running(tiny, num_blocks=blocks, block_size=16, drafts=FORCED) as harness:
        guessing(harness, mixed(plain), 8)
        assert harness.run(tokens, max_tokens=69).tokens == plain
        assert harness.engine.counters.preemptions == 0


def test_a_step_computes_no_more_than_its_budget(tiny: LoadedModel) -> None:
    sizes: list[int] = []
    with running(tiny, drafts=FORCED, max_batch_tokens=7) as harness:
        harness.engine.on_step.append(lambda record: sizes.append(record.tokens))
        guessing(harness, lambda run, n: [7] * n, 8)
        replies = [harness.submit(prompt(20, i), max_tokens=12) for i in range(3)]
        for reply in replies:
            assert len(reply.tokens) == 12
    assert max(sizes) == 7
    assert sizes[-1] == 1


def test_a_row_of_a_guess_that_is_not_finite_ends_the_draft_only(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(30)
    with running(tiny) as harness:
        plain = harness.run(tokens, max_tokens=30).tokens
    with running(tiny, drafts=FORCED) as harness:
        guessing(harness, right(plain), 5)
        run = harness.engine._runner.run

        def poisoned(plan: Any, rows: torch.Tensor) -> torch.Tensor:
            logits = run(plan, rows).clone()
            if len(rows) > 3:
                logits[3] = torch.nan
            return logits

        monkeypatch.setattr(harness.engine._runner, "run", poisoned)
        assert harness.run(tokens, max_tokens=30).tokens == plain
        # Rows 1 and 2 hold: 3 tokens a step.
        assert harness.engine.counters.steps == 30 // 3


def test_a_fault_in_the_middle_of_a_draft_ends_its_request_and_no_other(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(30)
    with running(tiny) as harness:
        plain = harness.run(tokens, max_tokens=24).tokens
    with running(tiny, drafts=FORCED) as harness:
        guessing(harness, right(plain), 5)
        choose = TokenSampler.choose

        def failing(self: TokenSampler, row: torch.Tensor, output: list[int], *more: Any) -> Any:
            if len(output) == 9:
                raise RuntimeError("no token today")
            return choose(self, row, output, *more)

        monkeypatch.setattr(TokenSampler, "choose", failing)
        other = harness.submit(tokens, max_tokens=24)
        broken = harness.submit(tokens, max_tokens=24, logprobs=True)
        assert "no token today" in str(broken.wait().error)
        assert other.tokens == plain


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cancelling_at_any_moment_leaks_nothing_and_leaves_the_others_alone(
    tiny: LoadedModel, data: st.DataObject
) -> None:
    base = prompt(20)
    count = data.draw(st.integers(2, 4))
    prompts = [base + prompt(data.draw(st.integers(1, 20)), i) for i in range(count)]
    cancel_at = data.draw(st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=count, max_size=count))
    with running(tiny) as harness:
        plain = [harness.run(tokens, max_tokens=24).tokens for tokens in prompts]
    with running(tiny, num_blocks=data.draw(st.sampled_from([12, 40])), drafts=FORCED) as harness:
        guesses = {tuple(tokens): mixed(answer) for tokens, answer in zip(prompts, plain, strict=True)}
        guessing(harness, lambda run, n: guesses[tuple(run.request.job.tokens.tolist())](run, n), 8)

        def stopper(limit: int | None) -> Callable[[Reply, Any], None]:
            def look(reply: Reply, event: Any) -> None:
                said = sum(len(e.token_ids) for e in reply.events if isinstance(e, DeltaEvent))
                if limit is not None and said >= limit and reply.handle is not None:
                    reply.handle.cancel()

            return look

        replies = [
            harness.submit(tokens, max_tokens=24, on_event=stopper(limit))
            for tokens, limit in zip(prompts, cancel_at, strict=True)
        ]
        for reply, answer in zip(replies, plain, strict=True):
            reply.wait()
            if reply.error is None:
                assert reply.tokens == answer
            else:
                said = [token for delta in reply.deltas() for token in delta.token_ids]
                assert said == answer[: len(said)]
        harness.check_idle()


def test_in_deterministic_mode_not_a_bit_changes(tiny_model: Path) -> None:
    loaded = load_model(str(tiny_model), dtype="fp32", device="cpu", deterministic=True)
    # The replies cross the end of a segment of attention.
    work = bit_work(loaded, [SEGMENT - 12, 60, 130], 24, [])
    with running(loaded, drafts=FORCED) as harness:
        answers = {tuple(p): [token for token, *_ in bits] for p, bits in zip(work.prompts, work.expected, strict=True)}
        guesses = {tokens: mixed(answer) for tokens, answer in answers.items()}
        guessing(harness, lambda run, n: guesses[tuple(run.request.job.tokens.tolist())](run, n), 8)
        for _ in range(3):
            check_all(work, ask_all(harness, work))
        assert harness.engine.counters.accepted_draft_tokens > 100


@pytest.mark.models
@pytest.mark.slow
def test_drafts_of_a_real_model_hold_and_change_nothing(smollm2: LoadedModel) -> None:
    work = replace(workload(smollm2, count=4, n=48), config={"drafts": DraftSettings(ALL)})
    for case in CASES[:4]:
        case(work)

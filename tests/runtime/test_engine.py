"""The engine on a tiny model: reuse, sharing, choices, stops, cancelling, failing, draining."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from radix import Namespace
from runtime.errors import EngineFailed, InvalidRequest, QueueFull, RequestCancelled, RequestTooLarge, ShuttingDown
from runtime.events import DeltaEvent, Event, FinishReason, StartedEvent
from runtime.models.loaded_model import LoadedModel
from runtime.sampling.sampler import TokenSampler
from tests.runtime.engine_harness import Harness, Reply, prompt, running
from tests.timing import eventually


def test_the_next_turn_reuses_prompt_and_output_but_one(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        first = harness.run(prompt(37), max_tokens=21)
        assert first.started.usage.cached_tokens == 0
        assert first.finished.usage.computed_tokens == 37
        second = harness.run(prompt(37) + first.tokens + prompt(5, 1), max_tokens=3)
        assert second.started.usage.cached_tokens == 37 + 21 - 1
        assert second.finished.usage.cached_tokens == 37 + 21 - 1
        assert second.finished.usage.computed_tokens == 5 + 1


def test_a_whole_hit_computes_the_last_token_only(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        cold = harness.run(prompt(48), max_tokens=8)
        warm = harness.run(prompt(48), max_tokens=8)
        assert warm.finished.usage.cached_tokens == 47
        assert warm.finished.usage.computed_tokens == 1
        assert warm.tokens == cold.tokens


def test_usage_is_the_same_in_every_place(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        harness.run(prompt(20), max_tokens=2)
        reply = harness.run(prompt(40), max_tokens=4)
        start, end = reply.started.usage, reply.finished.usage
        assert (start.prompt_tokens, start.cached_tokens) == (end.prompt_tokens, end.cached_tokens)
        assert end.output_tokens == len(reply.tokens) == 4


def test_a_chunk_that_is_done_is_shared_before_the_prefill_ends(tiny: LoadedModel) -> None:
    with running(tiny, max_batch_tokens=16) as harness:
        trunk = prompt(400)
        leader = harness.submit(trunk, max_tokens=2)
        follower = harness.submit([*trunk[:300], *prompt(20, 9)], max_tokens=2)
        assert follower.finished.usage.cached_tokens == 300
        assert leader.finished.usage.computed_tokens == 400


@pytest.mark.parametrize("branches", [2, 5, 32])
def test_branches_that_arrive_together_compute_the_trunk_once(tiny: LoadedModel, branches: int) -> None:
    with running(tiny, num_blocks=1024, max_running=64) as harness:
        trunk = prompt(700)
        replies = [harness.submit(trunk + [10 + i] * 3 + prompt(7, i), max_tokens=2) for i in range(branches)]
        for reply in replies:
            reply.wait()
        assert harness.engine.counters.computed_tokens == 700 + branches * 10


def test_the_trunk_survives_a_cancelled_leader(tiny: LoadedModel) -> None:
    with running(tiny, max_batch_tokens=16) as harness:
        trunk = prompt(320)
        leader = harness.submit(trunk, max_tokens=2)
        followers = [harness.submit([*trunk, 11 + i, 12], max_tokens=2) for i in range(3)]
        assert leader.handle is not None
        leader.handle.cancel()
        for reply in followers:
            assert len(reply.tokens) == 2
        computed = harness.engine.counters.computed_tokens
        assert 320 + 6 <= computed <= 320 + 6 + 16


def test_namespaces_never_share(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        tokens = prompt(64)
        names = [harness.namespace, Namespace(harness.namespace.fingerprint, salt="x")]
        names.append(Namespace(harness.namespace.fingerprint, adapter="x"))
        for name in names:
            assert harness.run(tokens, namespace=name, max_tokens=1).finished.usage.cached_tokens == 0
        for name in names:
            assert harness.run(tokens, namespace=name, max_tokens=1).finished.usage.cached_tokens == 63


def test_bypass_neither_reads_nor_writes(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        cold = harness.run(prompt(64), max_tokens=4, bypass_cache=True)
        assert harness.check().cached_tokens == 0
        warm = harness.run(prompt(64), max_tokens=4)
        assert warm.finished.usage.cached_tokens == 0
        again = harness.run(prompt(64), max_tokens=4, bypass_cache=True)
        assert again.finished.usage.cached_tokens == 0
        assert cold.tokens == warm.tokens == again.tokens


def test_warming_computes_everything_and_generates_nothing(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        reply = harness.run(prompt(50), prefill_only=True)
        assert reply.finished.usage.computed_tokens == 50
        assert reply.finished.usage.output_tokens == 0
        assert harness.run([*prompt(50), 7], max_tokens=1).finished.usage.cached_tokens == 50


def test_choices_are_forks_of_one_prefill(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        reply = harness.run(prompt(45), n=4, temperature=1.0, seed=3, max_tokens=12)
        assert reply.finished.usage.computed_tokens == 45
        outputs = reply.finished.outputs
        assert len(set(outputs)) > 1
        assert all(len(o) == 12 for o in outputs)
        alone = harness.run(prompt(45), n=1, temperature=1.0, seed=3, max_tokens=12)
        assert alone.tokens == list(outputs[0])
        assert {d.index for d in reply.events if isinstance(d, DeltaEvent)} == {0, 1, 2, 3}


def test_a_seed_gives_the_same_tokens_whatever_the_batch(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        alone = harness.run(prompt(30), temperature=0.9, top_p=0.9, seed=2**64 - 1, max_tokens=20)
        others = [harness.submit(prompt(25 + i, i), temperature=1.2, seed=i, max_tokens=30) for i in range(6)]
        crowded = harness.run(prompt(30), temperature=0.9, top_p=0.9, seed=2**64 - 1, max_tokens=20)
        for other in others:
            other.wait()
        assert crowded.tokens == alone.tokens


def test_stops(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        free = harness.run(prompt(30), max_tokens=24)
        by_token = harness.run(prompt(30), max_tokens=24, stop_token_ids=(free.tokens[10],))
        cut = free.tokens.index(free.tokens[10]) + 1
        assert by_token.tokens == free.tokens[:cut]
        assert by_token.deltas()[-1].finish_reason is FinishReason.STOP
        text = free.text()
        stop = text[6:8]
        by_string = harness.run(prompt(30), max_tokens=24, stop=(stop,))
        assert by_string.text() == text[: text.index(stop)]
        assert by_string.deltas()[-1].stopped_by == stop
        assert free.deltas()[-1].finish_reason is FinishReason.LENGTH


def test_end_token_ends_unless_ignored(tiny: LoadedModel) -> None:
    eos = tiny.info.eos_token_ids[0]
    with running(tiny) as harness:
        reply = harness.run(prompt(12), max_tokens=9, ignore_eos=False, logit_bias={eos: 100.0})
        assert reply.tokens == [eos]
        assert reply.deltas()[-1].finish_reason is FinishReason.EOS
        assert reply.text() == ""
        on = harness.run(prompt(12), max_tokens=9, ignore_eos=True, logit_bias={eos: 100.0})
        assert on.tokens == [eos] * 9


def test_logprobs_come_with_their_tokens(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        reply = harness.run(prompt(12), max_tokens=5, logprobs=True, top_logprobs=3)
        assert len(reply.tokens) == 5
        for delta in reply.deltas():
            (entry,) = delta.logprobs
            assert entry.token_id == delta.token_ids[0] == entry.top[0][0]
            assert entry.logprob == pytest.approx(entry.top[0][1])
            assert len(entry.top) == 3


def test_top_logprobs_alone_ask_for_logprobs(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        (delta,) = harness.run(prompt(12), max_tokens=1, top_logprobs=3).deltas()
        assert [len(entry.top) for entry in delta.logprobs] == [3]


def test_what_can_never_fit_is_refused_at_once_with_both_numbers(tiny: LoadedModel) -> None:
    with running(tiny, num_blocks=8) as harness:
        with pytest.raises(RequestTooLarge, match=r"159 tokens.*128"):
            harness.submit(prompt(100), max_tokens=60)
        assert len(harness.run(prompt(100), max_tokens=29).tokens) == 29


def test_a_request_that_needs_the_whole_pool_runs_beside_its_own_cached_prefix(tiny: LoadedModel) -> None:
    """The copy of a partial block wants one block more than there is; the partial reuse is given up instead."""
    with running(tiny, num_blocks=4, block_size=16) as harness:
        harness.run(prompt(40), max_tokens=1)
        cold = harness.run(prompt(40)[:25] + prompt(30, 5), max_tokens=10)
        harness.flush()
        assert harness.run(prompt(40)[:25] + prompt(30, 5), max_tokens=10).tokens == cold.tokens


@pytest.mark.parametrize(
    ("tokens", "sampling", "field"),
    [
        ([], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([10**6], {}, "prompt"),
        ([7] * 5000, {}, "prompt"),
        ([7], {"max_tokens": 2**31 - 1}, "max_tokens"),
        ([7], {"max_tokens": 0}, "max_tokens"),
        ([7], {"temperature": float("nan")}, "temperature"),
        ([7], {"top_p": 0.0}, "top_p"),
        ([7], {"n": 65}, "sampling.n"),
        ([7], {"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ([7], {"stop": ("",)}, "stop"),
    ],
)
def test_bad_input_names_its_field(tiny: LoadedModel, tokens: list[int], sampling: dict[str, Any], field: str) -> None:
    with running(tiny) as harness:
        with pytest.raises(InvalidRequest) as refused:
            harness.submit(tokens, **sampling)
        assert field in refused.value.field
        assert len(harness.run(prompt(8), max_tokens=2).tokens) == 2


def test_the_queue_is_bounded(tiny: LoadedModel) -> None:
    harness = Harness(tiny, max_queue=3)
    replies = [harness.submit(prompt(8), max_tokens=2) for _ in range(3)]
    with pytest.raises(QueueFull) as full:
        harness.submit(prompt(8), max_tokens=2)
    assert full.value.limit == 3
    assert full.value.retry_after_s > 0
    harness.engine.start()
    for reply in replies:
        assert len(reply.tokens) == 2
    assert len(harness.run(prompt(8), max_tokens=2).tokens) == 2
    harness.check_idle()
    harness.engine.shutdown(0)


def test_preempted_runs_end_with_the_same_tokens(tiny: LoadedModel) -> None:
    with running(tiny, num_blocks=512) as roomy:
        expected = [roomy.run(prompt(60, i), max_tokens=60).tokens for i in range(6)]
    with running(tiny, num_blocks=20) as tight:
        replies = [tight.submit(prompt(60, i), max_tokens=60) for i in range(6)]
        assert [reply.tokens for reply in replies] == expected
        assert tight.engine.counters.preemptions > 0
        assert sum(reply.finished.timing.preemptions for reply in replies) == tight.engine.counters.preemptions


def test_preempted_choices_end_with_the_same_tokens(tiny: LoadedModel) -> None:
    with running(tiny, num_blocks=512) as roomy:
        expected = roomy.run(prompt(60), n=5, temperature=1.0, seed=5, max_tokens=60).finished.outputs
    with running(tiny, num_blocks=14) as tight:
        reply = tight.run(prompt(60), n=5, temperature=1.0, seed=5, max_tokens=60)
        assert reply.finished.outputs == expected
        assert tight.engine.counters.preemptions > 0


def test_cancel_at_every_step_leaves_the_others_alone(tiny: LoadedModel) -> None:
    trunk = prompt(50)
    with running(tiny, max_batch_tokens=16) as harness:
        expected = [harness.run([*trunk, 20 + i], max_tokens=12).tokens for i in range(2)]
        for cut in range(12):
            harness.flush()

            def cancel_after(reply: Reply, event: Event, cut: int = cut) -> None:
                seen = sum(isinstance(e, DeltaEvent) for e in reply.events)
                if seen >= cut and reply.handle is not None:
                    reply.handle.cancel()

            doomed = harness.submit([*trunk, 30], max_tokens=12, on_event=cancel_after)
            others = [harness.submit([*trunk, 20 + i], max_tokens=12) for i in range(2)]
            assert [reply.tokens for reply in others] == expected
            doomed.wait()
            assert isinstance(doomed.error, RequestCancelled)
            harness.check_idle()
            retried = harness.run([*trunk, 30], max_tokens=12)
            harness.flush()
            assert harness.run([*trunk, 30], max_tokens=12).tokens == retried.tokens


def test_what_is_cancelled_during_a_forward_pass_keeps_its_blocks_until_it_ends(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tiny) as harness:
        runner, store = harness.engine._runner, harness.engine._store
        run = runner.run
        held: list[tuple[int, int]] = []

        def cancel_inside(*step: Any) -> Any:
            before = store.free_blocks
            assert doomed.handle is not None
            doomed.handle.cancel()
            answer = run(*step)
            held.append((before, store.free_blocks))
            return answer

        doomed = harness.submit(prompt(100), max_tokens=500)
        assert eventually(lambda: bool(doomed.deltas()))
        monkeypatch.setattr(runner, "run", cancel_inside)
        doomed.wait()
        assert isinstance(doomed.error, RequestCancelled)
        assert held
        assert all(before == after < store.num_blocks for before, after in held)
        harness.check_idle()


def test_what_waits_in_the_queue_does_not_lose_its_prefix_meanwhile(tiny: LoadedModel) -> None:
    wanted, newer = prompt(100, 1), [prompt(112, seed) for seed in range(2, 6)]
    with running(tiny, num_blocks=40, max_running=1, hold_back_s=0) as harness:
        for tokens in (wanted, *newer):
            harness.run(tokens, prefill_only=True)
        waiting: list[Reply] = []

        def meanwhile(reply: Reply, event: Event) -> None:
            # On the engine's thread: first the other comes into the queue, then everything else is used after it.
            if len(reply.events) == 4:
                waiting.append(harness.submit([*wanted, 5], max_tokens=1))
            elif len(reply.events) == 8:
                for tokens in newer:
                    harness.engine._store.refresh(tokens, harness.namespace)

        harness.run(prompt(16, 9), max_tokens=300, on_event=meanwhile)
        assert waiting[0].finished.usage.cached_tokens == 100
        assert harness.check().evicted_tokens > 100


def test_a_failing_forward_pass_loses_its_requests_and_nothing_else(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tiny) as harness:
        runner = harness.engine._runner
        run = runner.run
        harness.run(prompt(40), max_tokens=2)

        def explode(*step: Any) -> Any:
            run(*step)
            raise RuntimeError("the device is on fire")

        monkeypatch.setattr(runner, "run", explode)
        reply = harness.submit(prompt(80, 1), max_tokens=2).wait()
        assert isinstance(reply.error, EngineFailed)
        assert "on fire" in str(reply.error)
        monkeypatch.setattr(runner, "run", run)
        assert harness.run(prompt(80, 1), max_tokens=2).finished.usage.cached_tokens == 0
        assert harness.run(prompt(40), max_tokens=2).finished.usage.cached_tokens == 39


def test_an_owner_that_raises_is_dropped(tiny: LoadedModel) -> None:
    with running(tiny) as harness:

        def raise_on_start(reply: Reply, event: Event) -> None:
            if isinstance(event, StartedEvent):
                raise RuntimeError("the reader is gone")

        harness.submit(prompt(20), max_tokens=500, on_event=raise_on_start)
        assert len(harness.run(prompt(30), max_tokens=3).tokens) == 3


def test_a_choice_that_fails_ends_its_request_and_no_other(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tiny) as harness:
        expected = harness.run(prompt(30), max_tokens=12, temperature=1.0, seed=5).tokens
        choose = TokenSampler.choose

        def explode(self: TokenSampler, row: Any, output: list[int], allowed: Any) -> Any:
            if self._top_logprobs == 7 and len(output) == 3:
                raise IndexError("no such token")
            return choose(self, row, output, allowed)

        monkeypatch.setattr(TokenSampler, "choose", explode)
        other = harness.submit(prompt(30), max_tokens=12, temperature=1.0, seed=5)
        doomed = harness.submit(prompt(31), max_tokens=12, n=3, temperature=1.0, top_logprobs=7)
        assert isinstance(doomed.wait().error, EngineFailed)
        assert "no such token" in str(doomed.error)
        assert other.tokens == expected
        assert harness.engine.counters.failed == 1


def test_everybody_is_told_when_the_engine_itself_fails(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(tiny, max_running=1)

    def explode() -> Any:
        raise AssertionError("the books are wrong")

    monkeypatch.setattr(harness.engine._scheduler, "schedule", explode)
    replies = [harness.submit(prompt(20, seed), max_tokens=4) for seed in range(2)]
    harness.engine.start()
    for reply in replies:
        assert isinstance(reply.wait().error, EngineFailed)
        assert "the books are wrong" in str(reply.error)
    harness.engine._thread.join(60)
    assert not harness.engine.alive
    with pytest.raises(ShuttingDown):
        harness.engine.call(lambda store: store.stats()).result(60)
    with pytest.raises(ShuttingDown):
        harness.submit(prompt(20), max_tokens=4)
    harness.engine.shutdown(0)


def test_a_request_between_the_door_and_the_end_is_refused(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(tiny)
    harness.engine.start()
    admit = harness.engine._gate.admit

    def admit_and_stop(job: Any) -> int:
        allowed = admit(job)
        harness.engine.shutdown(0)
        return allowed

    monkeypatch.setattr(harness.engine._gate, "admit", admit_and_stop)
    with pytest.raises(ShuttingDown):
        harness.submit(prompt(20), max_tokens=4)
    assert harness.engine._gate._queued == 0
    with pytest.raises(ShuttingDown):
        harness.engine.call(lambda store: store.stats()).result(60)


def test_draining_finishes_what_runs_and_refuses_the_rest(tiny: LoadedModel) -> None:
    harness = Harness(tiny)
    harness.engine.start()
    reply = harness.submit(prompt(30), max_tokens=40)
    stopper = threading.Thread(target=harness.engine.shutdown, args=(60,))
    stopper.start()
    assert len(reply.tokens) == 40
    stopper.join(60)
    assert not stopper.is_alive()
    with pytest.raises(ShuttingDown):
        harness.submit(prompt(30), max_tokens=4)


def test_draining_ends_at_its_limit(tiny: LoadedModel) -> None:
    harness = Harness(tiny)
    harness.engine.start()
    reply = harness.submit(prompt(30), max_tokens=4000)
    harness.engine.shutdown(0)
    assert isinstance(reply.wait().error, ShuttingDown)


def test_kv_behind_bad_logits_is_not_published(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tiny) as harness:
        runner = harness.engine._runner
        run = runner.run

        def half_broken(plan: Any, rows: Any) -> Any:
            logits = run(plan, rows).clone()
            logits[plan.input_ids[0, rows] == 99] = float("nan")
            return logits

        monkeypatch.setattr(runner, "run", half_broken)
        bad = harness.submit([*prompt(40), 99], max_tokens=4)
        good = harness.submit([*prompt(40, 1), 98], max_tokens=4)
        assert isinstance(bad.wait().error, EngineFailed)
        assert len(good.tokens) == 4
        assert harness.engine.call(lambda store: store.match([*prompt(40), 99], harness.namespace)).result(60) < 41
        monkeypatch.setattr(runner, "run", run)
        assert len(harness.run([*prompt(40), 99], max_tokens=4).tokens) == 4

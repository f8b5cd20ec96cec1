"""Explaining, leasing, quotas, cutting and holding over gRPC, on a real engine with a tiny random Llama."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from radixloop.v1 import cache_pb2, common_pb2, inference_pb2, sessions_pb2

from runtime.models.loaded_model import LoadedModel
from runtime.tool_calls import HeldCalls, ParsedToolCall, Pieces
from tests.runtime.services_harness import (
    BLOCKS,
    CONTEXT,
    Server,
    chat_prompt,
    generate,
    ids_prompt,
    open_session,
    prompt_of,
    refused,
    request,
    serving,
)

POOL = BLOCKS * 16


@pytest.fixture(scope="module")
def server(tiny: LoadedModel) -> Iterator[Server]:
    with serving(tiny, eviction="agent") as running:
        yield running


def spans(verdict: common_pb2.Verdict) -> list[tuple[int, int, str]]:
    names = common_pb2.Cause.Name
    return [(span.start, span.end, names(span.cause).removeprefix("CAUSE_").lower()) for span in verdict.spans]


def explain(server: Server, prompt: common_pb2.Prompt | None = None, **more: Any) -> cache_pb2.ExplainResponse:
    return server.cache.Explain(cache_pb2.ExplainRequest(prompt=prompt, **more), timeout=20)


def text(words: str) -> common_pb2.Prompt:
    return common_pb2.Prompt(text=words)


# Verdicts


def test_a_generate_says_why_its_prompt_missed(server: Server) -> None:
    first = generate(server, text("verdicts: one and the same head, then this"))
    assert spans(first.started.verdict)[-1][1:] == (42, "never_seen")
    again = generate(server, text("verdicts: one and the same head, then this"))
    assert spans(again.started.verdict) == [(0, 41, "cached"), (41, 42, "last_token")]
    other = generate(server, text("verdicts: one and the same head, then that"))
    assert spans(other.started.verdict) == [(0, 40, "cached"), (40, 42, "diverged")]
    assert other.started.usage.cached_tokens == 40
    beside = other.started.verdict.spans[1].beside
    assert list(beside[0].ids)[:2] == list(
        server.inference.Tokenize(inference_pb2.TokenizeRequest(prompt=text("is"))).token_ids.ids
    )
    bypassed = generate(server, text("verdicts: one and the same head, then this"), bypass_cache=True)
    assert not bypassed.started.HasField("verdict")


def test_explain_says_what_generate_would_and_changes_nothing(server: Server) -> None:
    generate(server, prompt_of(60, seed=100))
    prompt = ids_prompt(*prompt_of(50, seed=100).token_ids.ids, 7, 8, 9)
    before = server.idle()
    told = explain(server, prompt)
    after = server.idle()
    assert (told.prompt_tokens, told.cached_tokens) == (53, 50)
    assert spans(told.verdict) == [(0, 50, "cached"), (50, 53, "diverged")]
    assert told.prefill_s_per_token > 0
    assert told.estimated_s == pytest.approx(3 * told.prefill_s_per_token)
    assert told.eviction == "agent"
    assert (after.cached_tokens, after.requests_total) == (before.cached_tokens, before.requests_total)
    assert spans(generate(server, prompt).started.verdict) == spans(told.verdict)


def test_both_sides_of_a_divergence_are_shown_in_words(server: Server) -> None:
    server.cache.Warm(cache_pb2.WarmRequest(prompt=text("It is 12:30 in Zürich, be brief.")))
    parted = explain(server, text("It is 12:45 in Zürich, be brief.")).divergence
    assert parted.position == 9
    assert parted.shared == "It is 12:"
    assert parted.prompt.startswith("45 in Z")
    assert [side[:7] for side in parted.stored] == ["30 in Z"]
    assert not parted.HasField("message_index")
    assert not explain(server, text("It is 12:30 in Zürich, be brief. And more")).HasField("divergence")


def test_a_divergence_in_a_chat_names_the_message_and_the_character(server: Server) -> None:
    def history(third: str, role: str = "user") -> common_pb2.Prompt:
        return chat_prompt(("system", "chat: user user"), ("user", "user"), ("assistant", ""), (role, third))

    server.cache.Warm(cache_pb2.WarmRequest(prompt=history("look at a.py, please")))
    parted = explain(server, history("look at b.py, please")).divergence
    assert (parted.message_index, parted.role, parted.offset) == (3, "user", 8)
    parted = explain(server, history("look at a.py, please", role="tool")).divergence
    assert (parted.message_index, parted.role) == (3, "tool")
    assert not parted.HasField("offset")
    longer = chat_prompt(("system", "chat: user user"), ("user", "user"), ("assistant", ""), ("user", "look at a.py"))
    parted = explain(server, longer).divergence
    assert (parted.message_index, parted.HasField("offset")) == (3, False)
    tool = '{"type": "function", "function": {"name": "%s", "description": "", "parameters": {}}}'
    server.cache.Warm(cache_pb2.WarmRequest(prompt=chat_prompt(("user", "hi"), tools=[tool % "aa", tool % "bb"])))
    parted = explain(server, chat_prompt(("user", "hi"), tools=[tool % "bb", tool % "aa"])).divergence
    assert parted.position > 0
    assert not parted.HasField("message_index")


def test_what_was_evicted_is_told_from_what_was_never_seen(tiny: LoadedModel) -> None:
    with serving(tiny) as small:
        lost = prompt_of(100, seed=1)
        generate(small, lost, 1)
        for seed in range(2, 6):
            generate(small, prompt_of(CONTEXT - 100, seed=seed), 1)
        told = explain(small, lost)
        assert spans(told.verdict)[-1][2] == "evicted"
        assert told.verdict.spans[-1].gone_s > 0
        assert spans(explain(small, prompt_of(100, seed=99)).verdict) == [(0, 100, "never_seen")]


@pytest.mark.parametrize("across", [True, False])
def test_that_another_namespace_holds_it_is_told_where_that_is_wanted(tiny: LoadedModel, across: bool) -> None:
    with serving(tiny, explain_across_namespaces=across) as small:
        prompt = prompt_of(50, seed=1)
        generate(small, prompt, 1, namespace=common_pb2.Namespace(salt="secret name"))
        told = explain(small, prompt)
        cause = "other_namespace" if across else "never_seen"
        assert spans(told.verdict)[0] == (0, 50, cause)
        assert b"secret" not in told.SerializeToString()


def test_public_tokens_are_shared_across_salts_and_the_rest_is_not(server: Server) -> None:
    prompt = prompt_of(90, seed=110)
    for salt, public, cached in (("pa", 40, 0), ("pb", 40, 40), ("pc", 0, 0), ("pb", 40, 89)):
        answer = generate(server, prompt, 1, namespace=common_pb2.Namespace(salt=salt), public_tokens=public)
        assert answer.started.usage.cached_tokens == cached, salt
    told = explain(server, prompt, namespace=common_pb2.Namespace(salt="pd"), public_tokens=40)
    assert told.cached_tokens == 40


def test_a_session_s_next_turn_is_explained(server: Server) -> None:
    session = open_session(server)
    empty = refused(lambda: explain(server, session_id=session))
    assert "session is empty" in empty.details()
    generate(server, chat_prompt(("user", "explain me")), 5, session_id=session)
    whole = explain(server, session_id=session)
    assert spans(whole.verdict)[0][2] == "cached"
    told = explain(server, chat_prompt(("user", "more")), session_id=session)
    assert told.cached_tokens == whole.prompt_tokens - 1
    turn = generate(server, chat_prompt(("user", "more")), 5, session_id=session)
    assert spans(turn.started.verdict) == spans(told.verdict)


# Leases and quotas


def lease(server: Server, ttl_s: float = 60.0, **more: Any) -> cache_pb2.LeaseResponse:
    return server.cache.Lease(cache_pb2.LeaseRequest(ttl_s=ttl_s, **more), timeout=20)


def leases(server: Server) -> cache_pb2.ListLeasesResponse:
    return server.cache.ListLeases(cache_pb2.ListLeasesRequest())


def test_a_lease_lives_from_asking_to_release(server: Server) -> None:
    prompt = prompt_of(70, seed=120)
    server.cache.Warm(cache_pb2.WarmRequest(prompt=prompt))
    made = lease(server, 60, prompt=prompt, priority=7, label="mine")
    assert (made.covered_tokens, made.lease.tokens, made.lease.priority) == (70, 70, 7)
    listed = leases(server)
    assert [(each.lease_id, each.label) for each in listed.leases] == [(made.lease.lease_id, "mine")]
    assert (listed.leased_tokens, listed.leasable_tokens) == (70, POOL // 2)
    assert 0 < listed.leases[0].ttl_s <= 60
    renewed = server.cache.RenewLease(cache_pb2.RenewLeaseRequest(lease_id=made.lease.lease_id, ttl_s=600))
    assert renewed.ttl_s > 590
    assert server.stats().leases == 1
    released = server.cache.ReleaseLease(cache_pb2.ReleaseLeaseRequest(lease_id=made.lease.lease_id))
    assert released.label == "mine"
    assert leases(server).leased_tokens == 0
    for call in (
        lambda: server.cache.ReleaseLease(cache_pb2.ReleaseLeaseRequest(lease_id=made.lease.lease_id)),
        lambda: server.cache.RenewLease(cache_pb2.RenewLeaseRequest(lease_id=made.lease.lease_id, ttl_s=1)),
    ):
        error = refused(call)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert str(made.lease.lease_id) in error.details()


def test_a_leased_prompt_outlives_newer_ones_and_a_lapsed_lease_is_named(tiny: LoadedModel) -> None:
    with serving(tiny) as small:
        kept, lost = prompt_of(100, seed=1), prompt_of(100, seed=2)
        for prompt in (kept, lost):
            generate(small, prompt, 1)
        held = lease(small, 600, prompt=kept)
        for seed in range(3, 7):
            generate(small, prompt_of(CONTEXT - 100, seed=seed), 1)
        assert explain(small, kept).cached_tokens == 99
        assert explain(small, lost).cached_tokens == 0
        small.cache.RenewLease(cache_pb2.RenewLeaseRequest(lease_id=held.lease.lease_id, ttl_s=1e-6))
        for seed in range(7, 11):
            generate(small, prompt_of(CONTEXT - 100, seed=seed), 1)
        assert spans(explain(small, kept).verdict)[-1][2] == "lease_expired"


def test_a_lease_over_the_cap_is_refused_by_name_and_counted(tiny: LoadedModel) -> None:
    with serving(tiny, leasable_share=0.1) as small:
        prompt = prompt_of(1000, seed=1)
        generate(small, prompt, 1)
        error = refused(lambda: lease(small, prompt=prompt))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "960" in error.details()
        assert "leasable_share" in error.details()
        assert small.stats().lease_refusals_total == 1
        assert leases(small).leased_tokens == 0


def test_a_session_is_leased_by_its_name(server: Server) -> None:
    session = open_session(server)
    assert "empty" in refused(lambda: lease(server, session_id=session)).details()
    generate(server, prompt_of(40, seed=130), 5, session_id=session)
    made = lease(server, session_id=session)
    assert (made.covered_tokens, made.lease.tokens) == (44, 45)
    server.cache.ReleaseLease(cache_pb2.ReleaseLeaseRequest(lease_id=made.lease.lease_id))


def test_quotas_are_set_listed_and_lifted(tiny: LoadedModel) -> None:
    with serving(tiny, quota=("noisy=0.25", "=0.5")) as small:
        listed = {q.namespace.salt: q for q in small.cache.ListQuotas(cache_pb2.ListQuotasRequest()).quotas}
        assert {salt: (q.blocks, q.share) for salt, q in listed.items()} == {"noisy": (150, 0.25), "": (300, 0.5)}
        assert not listed[""].namespace.HasField("salt")
        quiet = common_pb2.Namespace(salt="quiet")
        generate(small, prompt_of(200, seed=1), 1, namespace=quiet)
        for seed in range(2, 12):
            generate(small, prompt_of(2000, seed=seed), 1, namespace=common_pb2.Namespace(salt="noisy"))
        assert explain(small, prompt_of(200, seed=1), namespace=quiet).cached_tokens == 199
        assert small.stats().cached_blocks < 200
        lifted = small.cache.SetQuota(cache_pb2.SetQuotaRequest(namespace=common_pb2.Namespace(salt="noisy")))
        assert not lifted.HasField("share")
        assert len(small.cache.ListQuotas(cache_pb2.ListQuotasRequest()).quotas) == 1


# Sessions that are cut, closed, held


def truncate(server: Server, session: str, **keep: int) -> sessions_pb2.TruncateSessionResponse:
    return server.sessions.Truncate(sessions_pb2.TruncateSessionRequest(session_id=session, **keep))


def test_a_chat_is_cut_back_and_goes_on_from_there(server: Server) -> None:
    session = open_session(server)
    turns = [generate(server, chat_prompt(("user", f"cut {i}")), 6, session_id=session) for i in range(3)]
    ends = [turn.finished.session_tokens for turn in turns]
    error = refused(lambda: truncate(server, session, messages=3))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "0, 2, 4, 6" in error.details()
    cut = truncate(server, session, messages=2)
    assert (cut.tokens, cut.messages, cut.superseded_tokens) == (ends[0], 2, ends[2] - 1 - ends[0])
    again = generate(server, chat_prompt(("user", "cut 1")), 6, session_id=session)
    assert again.ids == turns[1].ids
    assert again.finished.session_tokens == ends[1]
    assert truncate(server, session, tokens=0).tokens == 0
    assert generate(server, chat_prompt(("user", "cut 0")), 6, session_id=session).ids == turns[0].ids


def test_a_closed_session_is_evicted_before_an_older_one(tiny: LoadedModel) -> None:
    with serving(tiny, eviction="agent") as small:
        old, gone = open_session(small), open_session(small)
        generate(small, prompt_of(1000, seed=1), 1, session_id=old)
        generate(small, prompt_of(1000, seed=2), 1, session_id=gone)
        small.sessions.Close(sessions_pb2.CloseSessionRequest(session_id=gone))
        for seed in (3, 4):
            generate(small, prompt_of(CONTEXT - 100, seed=seed), 1)
        assert explain(small, prompt_of(1000, seed=1)).cached_tokens == 999
        assert explain(small, prompt_of(1000, seed=2)).cached_tokens < 700


def test_a_rewritten_conversation_lets_its_old_branch_go(tiny: LoadedModel) -> None:
    with serving(tiny, eviction="agent") as small:
        other = prompt_of(1000, seed=1)
        generate(small, other, 1)
        left = ids_prompt(*prompt_of(100, seed=2).token_ids.ids, *prompt_of(900, seed=3).token_ids.ids)
        generate(small, left, 1, conversation="c")
        compacted = ids_prompt(*prompt_of(100, seed=2).token_ids.ids, *prompt_of(50, seed=4).token_ids.ids)
        assert generate(small, compacted, 1, conversation="c").started.usage.cached_tokens == 100
        for seed in (5, 6):
            generate(small, prompt_of(CONTEXT - 100, seed=seed), 1)
        assert explain(small, other).cached_tokens == 999
        assert explain(small, left).cached_tokens < 700


def say_calls(monkeypatch: pytest.MonkeyPatch, *calls: ParsedToolCall) -> None:
    """From now on every reply is read as these calls: the model's weights are random."""

    def finish(self: HeldCalls, cut: bool) -> Pieces:
        self.calls = calls
        return Pieces()

    monkeypatch.setattr(HeldCalls, "finish", finish)


def test_the_last_call_of_a_conversation_holds_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    call: ParsedToolCall = {"id": "1", "name": "read_file", "arguments": "{}"}
    say_calls(monkeypatch, call)
    chat = chat_prompt(("user", "held at first"))
    generate(server, chat, 5, conversation="last")
    assert len(leases(server).leases) == 1
    generate(server, chat, 5, conversation="last", conversation_ends=True)
    server.idle()
    assert leases(server).leased_tokens == 0


def hold(server: Server, session: str, tool: str) -> sessions_pb2.HoldSessionResponse:
    return server.sessions.Hold(sessions_pb2.HoldSessionRequest(session_id=session, tool=tool))


def test_a_session_that_waits_for_a_tool_is_held_until_its_next_turn(server: Server) -> None:
    session = open_session(server)
    generate(server, prompt_of(50, seed=140), 5, session_id=session)
    held = hold(server, session, "grep")
    assert (held.tokens, round(held.ttl_s)) == (54, 30)
    assert [each.label for each in leases(server).leases] == ["waits for grep"]
    generate(server, ids_prompt(9, 10), 5, session_id=session)
    assert leases(server).leased_tokens == 0
    learned = hold(server, session, "grep")
    assert learned.ttl_s < 29
    server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id=session))
    server.idle()
    assert leases(server).leased_tokens == 0
    assert server.stats().tool_holds_total >= 2


def test_a_session_that_is_cut_or_forgotten_is_held_no_longer(server: Server) -> None:
    session = open_session(server)
    generate(server, prompt_of(50, seed=141), 5, session_id=session)
    hold(server, session, "grep")
    truncate(server, session, tokens=30)
    assert leases(server).leased_tokens == 0
    assert hold(server, session, "grep").tokens == 30
    server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id=session))
    assert leases(server).leased_tokens == 0


def test_a_turn_that_fails_ends_the_hold_all_the_same(server: Server) -> None:
    session = open_session(server)
    generate(server, prompt_of(50, seed=142), 5, session_id=session)
    hold(server, session, "grep")
    call = server.inference.Generate(request(ids_prompt(9, 10), 3000, session_id=session))
    next(call)
    call.cancel()
    server.idle()
    assert leases(server).leased_tokens == 0


@pytest.mark.parametrize("by", ["session", "conversation"])
def test_a_turn_that_calls_a_tool_is_held_without_being_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    call: ParsedToolCall = {"id": "1", "name": "read_file", "arguments": "{}"}
    say_calls(monkeypatch, call)
    more: dict[str, Any] = {"session_id": open_session(server)} if by == "session" else {"conversation": "c"}
    answer = generate(server, chat_prompt(("user", f"held by {by}")), 5, **more)
    assert answer.deltas[-1].tool_calls[0].name == "read_file"
    (held,) = leases(server).leases
    assert held.label == "waits for read_file"
    say_calls(monkeypatch)
    generate(server, chat_prompt(("user", "result")), 5, **more)
    assert leases(server).leased_tokens == 0


HOSTILE: dict[str, tuple[str, Any, str]] = {
    "negative public tokens": ("explain", {"prompt": ids_prompt(9), "public_tokens": -1}, "public_tokens is -1"),
    "nothing to explain": ("explain", {}, "prompt is 'unset'"),
    "longer than the context": ("explain", {"prompt": prompt_of(CONTEXT + 1, seed=0)}, f"at most {CONTEXT}"),
    "text beyond the context": ("explain", {"prompt": text("x" * (CONTEXT + 1))}, f"ends at {CONTEXT}"),
    "lease without a time": ("lease", {"prompt": ids_prompt(9), "ttl_s": 0}, "ttl_s is 0"),
    "lease of NaN": ("lease", {"prompt": ids_prompt(9), "ttl_s": float("nan")}, "ttl_s is nan"),
    "lease for ever": ("lease", {"prompt": ids_prompt(9), "ttl_s": 1e300}, "at most 604800"),
    "lease priority": ("lease", {"prompt": ids_prompt(9), "priority": 101}, "priority is 101"),
    "long label": ("lease", {"prompt": ids_prompt(9), "label": "x" * 1000}, "label is"),
    "lease of nothing": ("lease", {}, "prompt is 'unset'"),
    "lease of two things": ("lease", {"prompt": ids_prompt(9), "session_id": "x"}, "prompt is 'set'"),
    "long lease": ("lease", {"prompt": text("x" * (CONTEXT + 1))}, f"ends at {CONTEXT}"),
    "quota of nothing": ("quota", {"share": 0.0}, "share is 0.0"),
    "quota of NaN": ("quota", {"share": float("nan")}, "share is nan"),
    "quota of more than all": ("quota", {"share": 1.5}, "share is 1.5"),
    "quota of a long salt": ("quota", {"namespace": common_pb2.Namespace(salt="x" * 2000)}, "namespace.salt"),
    "long conversation": ("generate", {"prompt": ids_prompt(9), "conversation": "x" * 1000}, "conversation is"),
    "an end without a conversation": ("generate", {"prompt": ids_prompt(9), "conversation_ends": True}, "goes with"),
    "request priority": ("generate", {"prompt": ids_prompt(9), "priority": -1}, "priority is -1"),
    "public tokens": ("generate", {"prompt": ids_prompt(9), "public_tokens": -(2**40)}, "public_tokens is"),
    "cut without a place": ("truncate", {"session_id": "hostile"}, "keep is 'unset'"),
    "cut below nothing": ("truncate", {"session_id": "hostile", "tokens": -1}, "tokens is -1"),
    "hold of an empty session": ("hold", {"session_id": "hostile", "tool": "x"}, "session is empty"),
    "hold for no tool": ("hold", {"session_id": "hostile", "tool": ""}, "tool is ''"),
    "hold for a long tool": ("hold", {"session_id": "hostile", "tool": "x" * 1000}, "tool is"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_refused_by_name(server: Server, name: str) -> None:
    kind, fields, words = HOSTILE[name]
    if fields.get("session_id") == "hostile":
        server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id="hostile"))
        open_session(server, session_id="hostile")
    calls = {
        "explain": lambda: server.cache.Explain(cache_pb2.ExplainRequest(**fields), timeout=20),
        "lease": lambda: server.cache.Lease(cache_pb2.LeaseRequest(**{"ttl_s": 1.0, **fields}), timeout=20),
        "quota": lambda: server.cache.SetQuota(cache_pb2.SetQuotaRequest(**fields), timeout=20),
        "generate": lambda: list(server.inference.Generate(inference_pb2.GenerateRequest(**fields), timeout=20)),
        "truncate": lambda: server.sessions.Truncate(sessions_pb2.TruncateSessionRequest(**fields), timeout=20),
        "hold": lambda: server.sessions.Hold(sessions_pb2.HoldSessionRequest(**fields), timeout=20),
    }
    error = refused(calls[kind])
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
    assert words in error.details()


def test_the_number_of_quotas_is_bounded(tiny: LoadedModel) -> None:
    with serving(tiny) as small:
        for i in range(256):
            small.cache.SetQuota(cache_pb2.SetQuotaRequest(namespace=common_pb2.Namespace(salt=str(i)), share=0.5))
        more = cache_pb2.SetQuotaRequest(namespace=common_pb2.Namespace(salt="more"), share=0.5)
        error = refused(lambda: small.cache.SetQuota(more))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "256 is the limit of quotas" in error.details()
        small.cache.SetQuota(cache_pb2.SetQuotaRequest(namespace=common_pb2.Namespace(salt="7"), share=0.25))


@pytest.mark.parametrize("method", ["Truncate", "Hold", "Lease", "Explain"])
def test_an_unknown_session_is_not_found(server: Server, method: str) -> None:
    calls = {
        "Truncate": lambda: truncate(server, "nobody", tokens=0),
        "Hold": lambda: hold(server, "nobody", "x"),
        "Lease": lambda: lease(server, session_id="nobody"),
        "Explain": lambda: explain(server, session_id="nobody"),
    }
    error = refused(calls[method])
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "'nobody'" in error.details()


def test_a_conversation_is_no_session(server: Server) -> None:
    session = open_session(server)
    error = refused(lambda: generate(server, ids_prompt(9), session_id=session, conversation="c"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not with session_id" in error.details()

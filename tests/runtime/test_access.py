"""Keys and tenants at the gRPC port: who is let in, and that no tenant sees another."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from radixloop.v1 import cache_pb2, common_pb2, events_pb2, inference_pb2, sessions_pb2

from agent_client import Access, InvalidArgument, NotFound, PermissionDenied, RadixClient, Unauthenticated
from agent_client.generate_options import GenerateOptions
from runtime.access.key_guard import _LOOK_EVERY_S, KeyFile
from runtime.grammar import GrammarCompiler, GrammarSpec
from runtime.grammar.interface import CompiledGrammar
from runtime.models.loaded_model import LoadedModel
from runtime.settings import BadConfig
from tests.runtime.services_harness import Server, generate, prompt_of, refused, request, serving

KEYS = {"ana": "key-of-ana", "bob": "key-of-bob", "*": "key-of-boss"}
FOR_HASTE = "key-of-ana-in-haste"
PROMPT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()) + f"ana {FOR_HASTE} priority=60\n")
    return file


@pytest.fixture(scope="module")
def guarded(tiny: LoadedModel, keys_file: Path) -> Iterator[Server]:
    with serving(tiny, keys=keys_file) as server:
        yield server


@pytest.fixture
def callers(guarded: Server) -> Iterator[dict[str, RadixClient]]:
    """A client for each key, and an empty cache."""
    clients = {tenant: RadixClient(guarded.target, access=Access(token=key)) for tenant, key in KEYS.items()}
    clients["*"].flush(all_namespaces=True)
    yield clients
    for client in clients.values():
        client.close()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ((), "a key is needed"),
        ((("authorization", "Bearer key-of-an"),), "this key is unknown"),
        ((("authorization", "Bearer key-of-ana2"),), "this key is unknown"),
        ((("authorization", "key-of-ana"),), "a key is needed"),
        ((("authorization", "Basic key-of-ana"),), "a key is needed"),
        ((("authorization", "Bearer "),), "a key is needed"),
        ((("x-api-key", "key-of-ana"),), "a key is needed"),
    ],
)
def test_who_has_no_key_is_refused_everything_but_health(
    guarded: Server, metadata: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: guarded.inference.Generate(request(prompt_of(5, seed=1)), metadata=metadata),
        lambda: guarded.inference.GetModelInfo(inference_pb2.GetModelInfoRequest(), metadata=metadata),
        lambda: guarded.sessions.Open(sessions_pb2.OpenSessionRequest(), metadata=metadata),
        lambda: guarded.cache.Flush(cache_pb2.FlushRequest(), metadata=metadata),
        lambda: guarded.cache.WatchEvents(events_pb2.WatchEventsRequest(), metadata=metadata),
        lambda: guarded.channel.unary_unary("/radixloop.v1.Nothing/AtAll")(b"", metadata=metadata),
        lambda: reflection_pb2_grpc.ServerReflectionStub(guarded.channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata
        ),
    ]
    with caplog.at_level(logging.DEBUG):
        for call in calls:
            error = refused(call)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert words in error.details()
            assert "key-of" not in error.details()
    assert "key-of" not in caplog.text
    health = health_pb2_grpc.HealthStub(guarded.channel)
    assert health.Check(health_pb2.HealthCheckRequest(), metadata=metadata).status == 1


def test_a_key_opens_reflection(guarded: Server) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(guarded.channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = stub.ServerReflectionInfo(asked, metadata=(("authorization", "Bearer key-of-ana"),))
    assert "radixloop.v1.Cache" in {service.name for service in answer.list_services_response.service}


def test_a_prompt_of_one_tenant_is_never_seen_by_another(callers: dict[str, RadixClient]) -> None:
    ana, bob, boss = callers["ana"], callers["bob"], callers["*"]
    ana.generate(PROMPT, max_tokens=3, ignore_eos=True)
    assert ana.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.cached_tokens == len(PROMPT) - 1
    told = bob.explain(PROMPT)
    assert told.verdict.tokens_by_cause() == {"never_seen": len(PROMPT)}
    assert bob.generate(PROMPT, max_tokens=1).verdict.tokens_by_cause() == {"never_seen": len(PROMPT)}
    bob.flush(all_namespaces=True)
    # Nor does a prompt that begins alike show what went on there.
    assert bob.explain([*PROMPT[:5], 99]).divergence is None
    assert ana.explain([*PROMPT[:5], 99]).divergence is not None
    assert boss.explain(PROMPT).verdict.tokens_by_cause() == {"never_seen": len(PROMPT)}
    assert RadixClient(boss.target, salt="ana", access=Access(token=KEYS["*"])).explain(PROMPT).cached_tokens


def test_the_tree_and_a_flush_show_and_take_what_is_the_callers(callers: dict[str, RadixClient]) -> None:
    ana, bob, boss = callers["ana"], callers["bob"], callers["*"]
    ana_x = RadixClient(ana.target, salt="x", access=Access(token=KEYS["ana"]))
    bob_x = RadixClient(ana.target, salt="x", access=Access(token=KEYS["bob"]))
    for seed, client in enumerate((ana, ana_x, bob, bob_x, boss)):
        client.generate([seed + 20] * 8, max_tokens=1)
    assert {node.salt for node in ana.nodes()} == {None, "x"}
    assert {node.head for node in ana.nodes()}.isdisjoint(node.head for node in bob.nodes())
    assert {node.salt for node in boss.nodes()} == {None, "ana", "bob", '["ana", "x"]', '["bob", "x"]'}
    assert [node.salt for node in ana_x.nodes(all_namespaces=False)] == ["x"]
    # Naming another tenant, or its pair, names a salt of one's own.
    for name in ("bob", '["bob", "x"]'):
        pretender = RadixClient(ana.target, salt=name, access=Access(token=KEYS["ana"]))
        assert not list(pretender.nodes(all_namespaces=False))
        assert pretender.flush().tokens == 0
    bob.flush(all_namespaces=True)
    assert not list(bob.nodes())
    assert {node.salt for node in ana.nodes()} == {None, "x"}
    ana_x.flush()
    assert {node.salt for node in ana.nodes()} == {None}
    assert {node.salt for node in boss.nodes()} == {None, "ana"}


def test_sessions_are_each_tenants_own(guarded: Server, callers: dict[str, RadixClient]) -> None:
    ana, bob = callers["ana"], callers["bob"]
    session = ana.session("work")
    session.generate(PROMPT, max_tokens=2, ignore_eos=True)
    metadata = (("authorization", "Bearer key-of-bob"),)
    sessions, missing = guarded.sessions, "session_id 'work' is unknown: it was never opened"
    for call in (
        lambda: guarded.inference.Generate(request(prompt_of(4, seed=1), session_id="work"), metadata=metadata),
        lambda: sessions.Fork(sessions_pb2.ForkSessionRequest(session_id="work"), metadata=metadata),
        lambda: sessions.Truncate(sessions_pb2.TruncateSessionRequest(session_id="work", tokens=0), metadata=metadata),
        lambda: sessions.Hold(sessions_pb2.HoldSessionRequest(session_id="work", tool="t"), metadata=metadata),
        lambda: guarded.cache.Explain(cache_pb2.ExplainRequest(session_id="work"), metadata=metadata),
        lambda: guarded.cache.Lease(cache_pb2.LeaseRequest(session_id="work", ttl_s=9), metadata=metadata),
    ):
        error = refused(call)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert missing in error.details()
    assert not sessions.Close(sessions_pb2.CloseSessionRequest(session_id="work"), metadata=metadata).closed
    with bob.session("work") as other:
        assert other.generate(PROMPT, max_tokens=2, ignore_eos=True).usage.cached_tokens == 0
    assert session.generate([5], max_tokens=1, ignore_eos=True).usage.cached_tokens == len(PROMPT) + 2 - 1
    forked = session.fork("work2")
    assert forked.tokens == session.tokens
    forked.close()
    assert session.close().closed


def test_leases_are_each_tenants_own(callers: dict[str, RadixClient]) -> None:
    ana, bob, boss = callers["ana"], callers["bob"], callers["*"]
    ana.generate(PROMPT, max_tokens=1)
    lease = ana.lease(PROMPT, ttl_s=60)
    assert not bob.leases().leases
    assert bob.leases().leased_tokens == 0
    for attempt in (lambda: bob.renew_lease(lease.id, 1.0), lambda: bob.release_lease(lease.id)):
        with pytest.raises(NotFound, match=f"lease_id is {lease.id}: there is no such lease, or it has ended"):
            attempt()
    assert [(one.id, one.salt) for one in ana.leases().leases] == [(lease.id, None)]
    assert [(one.id, one.salt) for one in boss.leases().leases] == [(lease.id, "ana")]
    assert ana.renew_lease(lease.id, 30.0).id == lease.id
    assert ana.release_lease(lease.id).id == lease.id


def test_a_key_says_which_priorities_its_holder_may_name(guarded: Server, callers: dict[str, RadixClient]) -> None:
    ana, boss = callers["ana"], callers["*"]
    with RadixClient(guarded.target, access=Access(token=FOR_HASTE)) as hasty:
        for client, highest in ((ana, 0), (hasty, 60), (boss, 100)):
            client.generate(PROMPT, max_tokens=1, priority=highest)
            # A lease that names none has 50, and so may everybody's.
            assert client.lease(PROMPT, ttl_s=60, priority=max(50, highest)).id
        for client, highest in ((ana, 0), (hasty, 60)):
            with pytest.raises(InvalidArgument, match=f"priority is {highest + 1}: at most {highest} with this key"):
                client.generate(PROMPT, max_tokens=1, priority=highest + 1)
            most = max(50, highest)
            with pytest.raises(InvalidArgument, match=f"priority is {most + 1}: at most {most} with this key"):
                client.lease(PROMPT, ttl_s=60, priority=most + 1)
    for client in (ana, boss):
        with pytest.raises(InvalidArgument, match="priority is 101: must be from 0 to 100"):
            client.generate(PROMPT, max_tokens=1, priority=101)
    for lease in boss.leases().leases:
        boss.release_lease(lease.id)


def test_a_grammar_takes_its_tenants_turn_whoever_asks_for_it(
    callers: dict[str, RadixClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[Hashable] = []
    compiled = GrammarCompiler.compiled

    def noted(compiler: GrammarCompiler, spec: GrammarSpec, caller: Hashable = None) -> Future[CompiledGrammar]:
        turns.append(caller)
        return compiled(compiler, spec, caller)

    monkeypatch.setattr(GrammarCompiler, "compiled", noted)
    for who, salt in (("ana", None), ("ana", "s"), ("*", None), ("*", "bob"), ("*", '["bob", "s"]')):
        with_salt: GenerateOptions = {} if salt is None else {"salt": salt}
        callers[who].generate(PROMPT, max_tokens=1, choice=["yes", "no"], **with_salt)
    assert turns == ["ana", "ana", None, "bob", "bob"]


def test_what_is_about_all_tenants_takes_an_operators_key(guarded: Server, callers: dict[str, RadixClient]) -> None:
    ana, boss = callers["ana"], callers["*"]
    for attempt in (
        ana.stats,
        ana.quotas,
        lambda: ana.set_quota(0.5),
        lambda: next(iter(ana.watch_events())),
        lambda: ana.generate(PROMPT, max_tokens=1, public_tokens=4),
        lambda: ana.explain(PROMPT, public_tokens=4),
        lambda: guarded.channel.unary_unary("/vllm.grpc.engine.VllmEngine/GetServerInfo")(
            b"", metadata=(("authorization", "Bearer key-of-ana"),)
        ),
    ):
        with pytest.raises((PermissionDenied, grpc.RpcError)) as caught:
            attempt()
        assert "operator's key" in str(caught.value)
    assert boss.stats().total_blocks
    assert boss.quotas() == ()
    assert boss.generate(PROMPT, max_tokens=1, public_tokens=4).text is not None
    next(iter(boss.watch_events()))


def test_calls_at_the_same_time_keep_their_callers_apart(callers: dict[str, RadixClient]) -> None:
    def run(tenant: str, seed: int) -> None:
        callers[tenant].generate([seed + 30, *PROMPT], max_tokens=4, ignore_eos=True)

    threads = [threading.Thread(target=run, args=(tenant, i)) for i in range(8) for tenant in ("ana", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for tenant in ("ana", "bob"):
        # Eight prompts and one place where they part.
        assert sum(node.tokens for node in callers[tenant].nodes()) == 8 * (1 + len(PROMPT) + 3)
    assert not [node for node in callers["*"].nodes() if node.salt not in ("ana", "bob")]


def test_keys_come_and_go_while_the_runtime_serves(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runtime.access.key_guard._LOOK_EVERY_S", 0.0)
    file = tmp_path / "keys"
    file.write_text("ana first-key\n")
    with (
        serving(tiny, keys=file) as server,
        RadixClient(server.target, access=Access(token="first-key")) as first,
        RadixClient(server.target, access=Access(token="second-key")) as second,
    ):
        first.model_info()
        file.write_text("ana second-key\n\n")
        second.model_info()
        with pytest.raises(Unauthenticated):
            first.model_info()
        file.write_text("nonsense-key\n")
        with caplog.at_level(logging.DEBUG):
            second.model_info()
        assert ":1: must read TENANT KEY" in caplog.text
        os.unlink(file)
        second.model_info()
        assert "-key" not in caplog.text
    assert _LOOK_EVERY_S > 0


def test_a_file_without_keys_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file") as caught:
        KeyFile(tmp_path / "absent")
    assert caught.value.field == "keys"


def test_without_keys_nothing_changes(server: Server) -> None:
    answer = generate(server, prompt_of(9, seed=77), 2, namespace=common_pb2.Namespace(salt="ana"))
    assert answer.finished.usage.output_tokens == 2
    with RadixClient(server.target, salt="ana", access=Access(token="whatever")) as client:
        assert {node.salt for node in client.nodes(all_namespaces=False)} == {"ana"}

"""What both APIs share: keys and tenants, verdicts in a header, health and metrics, and the command."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from array import array
from pathlib import Path

import httpx
import pytest
import trustme
from grpc_health.v1 import health_pb2
from typer.testing import CliRunner

from agent_client import InvalidArgument, Started, Usage
from agent_client.cli import app
from agent_client.gateway import check_listening, create_app, read_tenants
from agent_client.gateway.explain_header import explanation
from agent_client.gateway.failures import from_runtime
from agent_client.verdicts import Divergence, Span, TemplateDrift, Verdict
from tests.ports import free_port
from tests.timing import eventually

from .gateway_harness import error, frames, ok, serving_http
from .toy_runtime import ToyRuntime

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
EXPLAIN = {"x-radixloop-explain": "1"}


def test_a_verdict_in_a_header_when_asked_for(http: httpx.Client) -> None:
    assert "x-radixloop-explain" not in http.post(CHAT, json=HELLO).headers
    for stream in (False, True):
        answer = http.post(CHAT, json=HELLO | {"stream": stream}, headers=EXPLAIN)
        assert answer.headers["x-radixloop-explain"] == "21 of 22 prompt tokens cached; 1 never seen from token 21"
    two = {"model": "toy", "prompt": ["a", "bb"], "max_tokens": 1}
    told = http.post("/v1/completions", json=two, headers=EXPLAIN).headers["x-radixloop-explain"]
    assert told.startswith("prompt 0: 0 of 1 prompt token cached; 1 never seen from token 0 | prompt 1: ")


def test_a_verdict_on_one_line() -> None:
    spans = (
        Span(0, 1000, "cached"),
        Span(1000, 1100, "evicted", 65.0),
        Span(1100, 2200, "diverged", None, (array("i", [1]),)),
        Span(2200, 2201, "last_token"),
    )
    told = explanation([Started("r", Usage(2201, 1000), None, Verdict(spans))])
    assert told == (
        "1,000 of 2,201 prompt tokens cached; 100 evicted 1 min 05 s ago from token 1,000; "
        "1,100 diverged from token 1,100; the last token is always computed"
    )
    drift = TemplateDrift("drops_reasoning", "leaves the reasoning of message 2 out", 2)
    parted = Divergence(1100, "a", "b", ("c",), 2, "assistant", None, drift)
    assert (
        explanation([Started("r", Usage(2201, 1000), None, Verdict(spans), parted)])
        == told.replace("from token 1,100;", "from token 1,100, in message 2;")
        + "; the chat template leaves the reasoning of message 2 out"
    )
    many = Verdict(tuple(Span(i, i + 1, "diverged") for i in range(1000)))
    assert len(explanation([Started("r", Usage(1000), None, many)])) == 1000
    assert explanation([Started("r", Usage(5))]) == "0 of 5 prompt tokens cached"


def test_a_conversation_is_named_by_key_or_header_and_by_how_it_begins(
    http: httpx.Client, scripted: ToyRuntime
) -> None:
    def name(path: str, headers: dict[str, str] | None = None, **more: object) -> str | None:
        ok(http.post(path, json=HELLO | more, headers=headers))
        request = scripted.seen[-1].request
        return request.conversation if request.HasField("conversation") else None

    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    later = [*first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "b"}]
    aside = [{"role": "system", "content": "Name this chat."}, {"role": "user", "content": "a"}]
    assert name(CHAT, messages=first) is None
    keyed = name(CHAT, messages=first, prompt_cache_key="k" * 500)
    assert keyed is not None
    assert name(CHAT, messages=later, prompt_cache_key="k" * 500) == keyed
    assert name(CHAT, messages=aside, prompt_cache_key="k" * 500) != keyed
    assert name(CHAT, messages=first, prompt_cache_key="other") != keyed
    for header in ("x-claude-code-session-id", "session-id", "x-session-id", "X-Dynamo-Session-ID"):
        named = name(MESSAGES, {header: "s"}, messages=first[1:])
        assert named == name(MESSAGES, {header: "s"}, messages=[*first[1:], *later[2:]])
        assert named not in (None, name(MESSAGES, {header: "t"}, messages=first[1:]))
    assert name("/v1/completions", {"session-id": "s"}, prompt="a" * 1000) is not None
    assert name("/v1/completions", {"session-id": "s"}, prompt=["a", "b"]) is None


def test_health_says_whether_the_runtime_serves(http: httpx.Client, scripted: ToyRuntime) -> None:
    assert ok(http.get("/health")) == {"status": "SERVING", "runtimes": {scripted.target: "SERVING"}}
    scripted.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert http.get("/health").status_code == 503
    scripted.health.set("", health_pb2.HealthCheckResponse.SERVING)
    assert ok(http.get("/health"))


def test_requests_and_tokens_are_counted(toy: ToyRuntime) -> None:
    with serving_http(create_app(toy.target)) as url, httpx.Client(base_url=url) as client:
        ok(client.post(CHAT, json=HELLO))
        frames(client.post(CHAT, json=HELLO | {"stream": True}))
        error(client.post(CHAT, json={}), 400)
        error(client.get("/nowhere"), 404)
        lines = client.get("/metrics").text.splitlines()
    assert 'radixloop_gateway_requests_total{route="/v1/chat/completions",status="200"} 2.0' in lines
    assert 'radixloop_gateway_requests_total{route="/v1/chat/completions",status="400"} 1.0' in lines
    assert 'radixloop_gateway_requests_total{route="other",status="404"} 1.0' in lines
    assert "radixloop_gateway_prompt_tokens_total 44.0" in lines
    assert "radixloop_gateway_cached_tokens_total 21.0" in lines
    assert "radixloop_gateway_output_tokens_total 6.0" in lines
    # The one that asks.
    assert "radixloop_gateway_running_requests 1.0" in lines


def test_tenants_by_key_share_nothing(toy: ToyRuntime, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who may call\n\nana key-a\nana key-a2\nbob  key-b\n")
    with (
        serving_http(create_app(toy.target, tenants=read_tenants(file))) as url,
        httpx.Client(base_url=url) as client,
    ):

        def cached(key: str, **more: str) -> int:
            answer = client.post(CHAT, json=HELLO | more, headers={"authorization": f"Bearer {key}"})
            return ok(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [cached("key-a"), cached("key-a2"), cached("key-b")] == [0, 21, 0]
        assert [cached("key-a", cache_salt="s"), cached("key-a", cache_salt="s")] == [0, 21]
        assert ok(client.post(MESSAGES, json=HELLO, headers={"x-api-key": "key-b"}))["usage"]["input_tokens"] == 1
        salts = {seen.request.namespace.salt for seen in toy.seen}
        assert salts == {"ana", "bob", '["ana", "s"]'}
        calls = len(toy.seen)
        for headers in ({}, {"authorization": "Bearer key"}, {"authorization": "Basic key-a"}, {"x-api-key": "ana"}):
            for path in (CHAT, MESSAGES, "/v1/completions", f"{MESSAGES}/count_tokens"):
                assert error(client.post(path, json=HELLO, headers=headers), 401)["type"] == "authentication_error"
            assert error(client.get("/v1/models", headers=headers), 401)["code"] == "invalid_api_key"
        assert len(toy.seen) == calls


@pytest.mark.slow
def test_the_command_serves_at_loopback_until_a_signal(toy: ToyRuntime, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "agent_client", "gateway", "--runtime", toy.target, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:

        def answers() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
            except httpx.TransportError:
                assert process.poll() is None
                return False

        assert eventually(answers)
        taken = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert taken.returncode == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert f"http://127.0.0.1:{port} answers" in process.stderr.read()
    bad = subprocess.run(
        [*command, "--keys", str(tmp_path / "no")], capture_output=True, text=True, timeout=60, check=False
    )
    assert bad.returncode == 2
    assert "No such file" in bad.stderr


def test_the_command_serves_https_and_speaks_tls_with_a_token_to_its_runtime(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    (tmp_path / "token").write_text("secret\n")
    toy = ToyRuntime(tls=(issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()))
    port = free_port()
    command = [sys.executable, "-m", "agent_client", "gateway", "--port", str(port)]
    command += ["--runtime", toy.target.replace("127.0.0.1", "localhost")]
    files = {"--tls-ca": "ca", "--token-file": "token", "--listen-cert": "cert", "--listen-key": "key"}
    command += [part for flag, name in files.items() for part in (flag, str(tmp_path / name))]
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca"))
    with (
        subprocess.Popen(command) as process,
        httpx.Client(base_url=f"https://localhost:{port}", verify=trusting) as client,
    ):

        def answers() -> bool:
            assert process.poll() is None
            try:
                return client.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        try:
            assert eventually(answers)
            assert ok(client.post(CHAT, json=HELLO))["choices"]
            assert toy.tokens == {"Bearer secret"}
        finally:
            process.terminate()
            toy.stop()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--host", "0.0.0.0"), "give --listen-cert FILE --listen-key FILE, or --insecure"),
        (("--host", "0.0.0.0", "--listen-cert", "c", "--listen-key", "k"), "give --keys FILE, or --insecure"),
        (("--host", "example.org", "--keys", "k"), "where other machines may call"),
        (("--listen-cert", "c"), "give both or neither"),
        (("--listen-cert", "c", "--listen-key", "k"), "no certificate and its key"),
    ],
)
def test_where_others_may_call_it_listens_only_as_told(flags: tuple[str, ...], complaint: str) -> None:
    done = CliRunner().invoke(app, ["gateway", *flags])
    assert done.exit_code == 2
    assert complaint in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_at_loopback_nothing_is_asked_for(host: str) -> None:
    check_listening(host, None, None, keys=False, insecure=False)


def test_without_its_extra_the_command_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from agent_client.commands.gateway import run\n"
        "sys.exit(run(['here:1'], '127.0.0.1', 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "needs the package uvicorn: pip install 'radixloop[gateway]'" in done.stderr


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("sampling.top_p is 2: must be in (0, 1]", "top_p"),
        ("prompt.chat.messages[0].role is '': must have 1 to 64 characters", "messages[0].role"),
        ("namespace.salt is 2000 bytes: at most 1024 bytes", "cache_salt"),
        ("json_schema/properties/a is 5: a schema is an object or a boolean", "json_schema"),
        ("the template refuses this", None),
        ("this is no field", None),
    ],
)
def test_the_field_is_called_what_the_body_calls_it(message: str, param: str | None) -> None:
    assert from_runtime(InvalidArgument(message)).param == param


@pytest.mark.parametrize(
    "says",
    [
        "prompt is '9000 tokens': at most 4095: the context ends at 4096 tokens",
        "prompt.token_ids is '9000 ids': at most 4096: the context ends there",
        "prompt.chat is '999999 bytes': at most 131072 bytes (32 for each of the 4096 tokens of the model's context)",
    ],
)
def test_a_prompt_that_is_too_long_has_the_code_that_clients_look_for(says: str) -> None:
    told = from_runtime(InvalidArgument(says))
    assert (told.param, told.code) == ("prompt", "context_length_exceeded")

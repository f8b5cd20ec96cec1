"""TLS at the gRPC port: certificates of both sides, and the addresses that are refused without."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from agent_client import Access, RadixClient, RadixloopError, RetryPolicy
from runtime.access.server_tls import ServerTls
from runtime.config import build_config
from runtime.models.loaded_model import LoadedModel
from runtime.server import exposures
from runtime.settings import BadConfig
from tests.runtime.services_harness import Server, serving


class Authority:
    """An authority of the test's own, and files of what it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))
        self._issued = 0

    def issue(self, name: str, **more: Any) -> dict[str, Path]:
        self._issued += 1
        cert, key = self._folder / f"{self._issued}.pem", self._folder / f"{self._issued}.key"
        issued = self._ca.issue_cert(name, **more)
        key.write_bytes(issued.private_key_pem.bytes())
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return {"tls_cert": cert, "tls_key": key}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


def trusting(*authorities: Authority) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(b"".join(each.file.read_bytes() for each in authorities))


@pytest.fixture(scope="module")
def secure(tiny: LoadedModel, authority: Authority) -> Iterator[Server]:
    with serving(tiny, credentials=trusting(authority), **authority.issue("127.0.0.1")) as server:
        yield server


def info(target: str, access: Access | None) -> str:
    """The model's name, or why not."""
    with RadixClient(target, access=access, timeout_s=10, retry=RetryPolicy(max_attempts=1)) as client:
        try:
            return client.model_info().model
        except RadixloopError as error:
            return str(error)


def test_a_client_that_trusts_the_authority_is_served(secure: Server, authority: Authority) -> None:
    named = secure.runtime._shared.info.name
    assert info(secure.target, Access(tls_ca=authority.file)) == named


def test_who_does_not_trust_it_or_speaks_in_the_clear_is_not(secure: Server, stranger: Authority) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in info(secure.target, Access(tls_ca=stranger.file))
    assert "UNAVAILABLE" in info(secure.target, Access(tls=True))
    assert "UNAVAILABLE" in info(secure.target, Access(token="secret-token"))


@pytest.mark.parametrize("wrong", ["expired", "another name"])
def test_a_certificate_that_is_not_right_is_not_believed(tiny: LoadedModel, authority: Authority, wrong: str) -> None:
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    bad = authority.issue("127.0.0.1", not_after=yesterday) if wrong == "expired" else authority.issue("elsewhere.test")
    good = authority.issue("127.0.0.1")
    # The harness waits for its own channel: it starts with a good certificate, and the bad one comes after.
    cert, key = good["tls_cert"], good["tls_key"]
    with serving(tiny, credentials=trusting(authority), tls_cert=cert, tls_key=key) as server:
        access = Access(tls_ca=authority.file)
        assert "UNAVAILABLE" not in info(server.target, access)
        key.write_bytes(bad["tls_key"].read_bytes())
        cert.write_bytes(bad["tls_cert"].read_bytes())
        told = info(server.target, access)
        assert "UNAVAILABLE" in told, told


def test_a_certificate_is_renewed_without_a_restart(
    tiny: LoadedModel, authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue("127.0.0.1")
    renewed = stranger.issue("127.0.0.1")
    with serving(tiny, credentials=trusting(authority), **files) as server:
        before, after = Access(tls_ca=authority.file), Access(tls_ca=stranger.file)
        assert "UNAVAILABLE" in info(server.target, after)
        # Half written: the old pair stays in use.
        files["tls_cert"].write_bytes(renewed["tls_cert"].read_bytes())
        assert "UNAVAILABLE" not in info(server.target, before)
        assert "the certificate from before stays in use" in caplog.text
        files["tls_key"].write_bytes(renewed["tls_key"].read_bytes())
        assert "UNAVAILABLE" not in info(server.target, after)
        assert "UNAVAILABLE" in info(server.target, before)


def test_callers_may_have_to_show_a_certificate(tiny: LoadedModel, authority: Authority, stranger: Authority) -> None:
    mine, theirs = authority.issue("an-agent.test"), stranger.issue("an-agent.test")
    credentials = Access(tls_ca=authority.file, **mine).credentials()
    pair = authority.issue("127.0.0.1")
    with serving(tiny, credentials=credentials, tls_client_ca=authority.file, **pair) as server:
        assert "UNAVAILABLE" not in info(server.target, Access(tls_ca=authority.file, **mine))
        assert "UNAVAILABLE" in info(server.target, Access(tls_ca=authority.file))
        assert "UNAVAILABLE" in info(server.target, Access(tls_ca=authority.file, **theirs))


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"tls_cert": "absent.pem"}, "tls_cert", "No such file"),
        ({"tls_key": "absent.pem"}, "tls_key", "No such file"),
        ({"tls_key": "other.key"}, "tls_cert", "no certificate and its key"),
        ({"tls_cert": "text"}, "tls_cert", "no certificate and its key"),
        ({"tls_client_ca": "text"}, "tls_client_ca", "holds no certificate"),
    ],
)
def test_files_that_make_no_certificate_are_named(
    authority: Authority, tmp_path: Path, change: dict[str, str], field: str, words: str
) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "other.key").write_bytes(authority.issue("x.test")["tls_key"].read_bytes())
    files = authority.issue("127.0.0.1") | {name: tmp_path / file for name, file in change.items()}
    with pytest.raises(BadConfig, match=words) as caught:
        ServerTls(files["tls_cert"], files["tls_key"], files.get("tls_client_ca"))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "host is '0.0.0.0'.*--tls-cert FILE --tls-key FILE, or --insecure"),
        ({"host": "::"}, "host is '::'.*--insecure"),
        ({"host": "10.1.2.3", "keys": "keys"}, "--insecure"),
        ({"tls_cert": "c"}, "tls_cert and tls_key"),
        ({"tls_client_ca": "c"}, "give tls_cert and tls_key too"),
        (
            {"kv_events": "zmq", "kv_events_endpoint": "tcp://*:5557"},
            "kv_events_endpoint is 'tcp://.:5557'.*--insecure",
        ),
        ({"kv_events": "zmq", "kv_events_replay": "tcp://0.0.0.0:1"}, "kv_events_replay is .*--insecure"),
        (
            {"host": "::", "tls_cert": "c", "tls_key": "k", "kv_events": "zmq", "kv_events_endpoint": "tcp://h:1"},
            "never encrypted",
        ),
    ],
)
def test_what_others_could_overhear_takes_tls_or_a_word(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        build_config(settings)
    if "tls_cert" not in settings and "tls_client_ca" not in settings:
        build_config(settings | {"insecure": True})


def test_what_may_listen_anywhere() -> None:
    for settings in (
        {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k"},
        {"host": "localhost"},
        {"kv_events_endpoint": "tcp://*:5557"},
        {"kv_events": "zmq", "kv_events_endpoint": "ipc:///tmp/x", "kv_events_replay": "off"},
    ):
        build_config(settings)


def test_what_stays_open_is_told() -> None:
    assert len(exposures(build_config({"host": "::", "insecure": True}))) == 2
    assert not exposures(build_config({"host": "::", "tls_cert": "c", "tls_key": "k", "keys": "f"}))
    (told,) = exposures(build_config({"host": "::", "insecure": True, "keys": "f"}))
    assert "read on the way" in told


def test_keys_keep_verdicts_within_a_namespace() -> None:
    assert build_config({}).explains_across_namespaces
    assert not build_config({"keys": "f"}).explains_across_namespaces
    assert not build_config({"explain_across_namespaces": False}).explains_across_namespaces

"""The TLS side of a runtime's port."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from runtime.settings import BadConfig

log = logging.getLogger(__name__)


class ServerTls:
    """The certificate that a runtime shows, read again when its files change.

    Args:
        cert: PEM file: the certificate, and those between it and its authority.
        key: PEM file of its key, without a password.
        client_ca: PEM file of authorities; callers must show a certificate of one of them.

    Raises BadConfig, which names the setting, for files that do not make a certificate.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = {"tls_cert": cert, "tls_key": key} | ({} if client_ca is None else {"tls_client_ca": client_ca})
        self._mutual = client_ca is not None
        self._told = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """What the port is opened with."""
        first = self._configuration(self._told)
        return grpc.dynamic_ssl_server_credentials(
            first,
            self._changed,  # type: ignore[arg-type]  # None is "as before"
            require_client_authentication=self._mutual,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """At each handshake, on a thread of gRPC's: None goes on with what there is."""
        try:
            read = self._read()
        except BadConfig as error:
            log.error("--%s: %s; the certificate from before stays in use", str(error.field).replace("_", "-"), error)
            return None
        if read == self._told:
            return None
        self._told = read
        log.info("the certificate in %s changed", self._files["tls_cert"])
        return self._configuration(read)

    def _read(self) -> dict[str, bytes]:
        contents = {}
        for name, file in self._files.items():
            try:
                contents[name] = file.read_bytes()
            except OSError as error:
                raise BadConfig(name, f"{file}: {error.strerror}") from None
        _check(self._files)
        return contents

    def _configuration(self, read: dict[str, bytes]) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(read["tls_key"], read["tls_cert"])], root_certificates=read.get("tls_client_ca")
        )


def _check(files: dict[str, Path]) -> None:
    # gRPC takes any bytes, and then every handshake fails.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files["tls_cert"], files["tls_key"], password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise BadConfig(
            "tls_cert", f"{files['tls_cert']} and {files['tls_key']} are no certificate and its key, as PEM: {why}"
        ) from None
    if "tls_client_ca" in files:
        try:
            context.load_verify_locations(files["tls_client_ca"])
        except (ssl.SSLError, OSError) as error:
            why = getattr(error, "reason", None) or str(error)
            raise BadConfig("tls_client_ca", f"{files['tls_client_ca']} holds no certificate, as PEM: {why}") from None

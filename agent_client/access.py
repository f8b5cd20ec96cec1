"""What a client needs beside the address of a runtime that asks for TLS or for a token."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidArgument

if TYPE_CHECKING:
    import grpc

TLS_VARIABLE = "RADIXLOOP_TLS"
TLS_CA_VARIABLE = "RADIXLOOP_TLS_CA"
TLS_CERT_VARIABLE = "RADIXLOOP_TLS_CERT"
TLS_KEY_VARIABLE = "RADIXLOOP_TLS_KEY"
TOKEN_VARIABLE = "RADIXLOOP_TOKEN"
TOKEN_FILE_VARIABLE = "RADIXLOOP_TOKEN_FILE"

_TRUE = ("1", "true", "yes", "on")
# What a header can carry and what no line of a file breaks.
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Access:
    """How a runtime is spoken to. Naming a file of certificates turns TLS on.

    Attributes:
        tls: speak TLS and check the runtime's certificate, against `tls_ca` or else the authorities that gRPC knows.
        tls_ca: PEM file of the authorities (or the one certificate) to trust instead.
        tls_cert: PEM file of this client's own certificate, for a runtime that asks for one; with `tls_key`.
        token: sent as a bearer token with every call. It is in no error and in no log.
    """

    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("tls_cert and tls_key are one certificate and its key: give both or neither")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise InvalidArgument("the token must be printable ASCII without spaces (it is not shown here)")

    @classmethod
    def from_environment(cls) -> Access:
        """What the variables RADIXLOOP_TLS, _TLS_CA, _TLS_CERT, _TLS_KEY, _TOKEN and _TOKEN_FILE say.

        Raises InvalidArgument.
        """

        def path(variable: str) -> Path | None:
            return Path(os.environ[variable]) if os.environ.get(variable) else None

        token, file = os.environ.get(TOKEN_VARIABLE) or None, path(TOKEN_FILE_VARIABLE)
        return cls(
            tls=os.environ.get(TLS_VARIABLE, "").lower() in _TRUE,
            tls_ca=path(TLS_CA_VARIABLE),
            tls_cert=path(TLS_CERT_VARIABLE),
            tls_key=path(TLS_KEY_VARIABLE),
            token=read_token(file) if token is None and file is not None else token,
        )

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.tls or self.tls_ca is not None or self.tls_cert is not None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """What a channel is opened with; None without TLS. Raises InvalidArgument for a file that cannot be read."""
        if not self.secure:
            return None
        import grpc

        return grpc.ssl_channel_credentials(
            _read("tls_ca", self.tls_ca), _read("tls_key", self.tls_key), _read("tls_cert", self.tls_cert)
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def read_token(file: Path) -> str:
    """The token that is all that `file` holds. Raises InvalidArgument, which does not show what is there instead."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidArgument(f"token_file is {str(file)!r}: {why}") from None
    if not _TOKEN.fullmatch(token):
        raise InvalidArgument(
            f"token_file is {str(file)!r}: must hold one token and nothing else, in printable ASCII without spaces"
        )
    return token


def _read(name: str, file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{name} is {str(file)!r}: {error.strerror}") from None

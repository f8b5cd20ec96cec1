"""Bearer keys and the tenants that they stand for. A tenant is a cache namespace of its own."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from pathlib import Path

from .failures import UNAUTHORIZED, ApiError

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64})\s+([!-~]+)")


class BadKeyFile(ValueError):
    """The file of keys cannot be read; the message says where."""


class Tenants:
    """Without keys everybody is let in, and namespaces are what requests name."""

    def __init__(self, tenants: Mapping[str, str] | None = None) -> None:
        # By digest: comparing digests of one length takes the same time whatever the keys are.
        self._tenants = None if tenants is None else [(_digest(key), tenant) for key, tenant in tenants.items()]

    def of(self, headers: Mapping[str, str]) -> str | None:
        """The tenant of a request, by `Authorization: Bearer KEY` or Anthropic's `x-api-key`. Raises ApiError 401."""
        if self._tenants is None:
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        digest, found = _digest(given), None
        # Every key is looked at, so that the time tells nothing of how many there are before the right one.
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            why = "this API key is unknown" if given else "an API key is needed, as Authorization: Bearer KEY"
            raise ApiError(UNAUTHORIZED, why, code="invalid_api_key")
        return found


def read_tenants(file: Path) -> Tenants:
    """Lines of `TENANT KEY`; a tenant may have several keys. Raises BadKeyFile."""
    tenants: dict[str, str] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeyFile(f"{file}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        matched = _LINE.fullmatch(line.strip())
        if matched is None:
            raise BadKeyFile(f"{file}:{number}: must read TENANT KEY (tenant: letters, digits, . _ -; key: ASCII)")
        tenant, key = matched.groups()
        if tenants.setdefault(key, tenant) != tenant:
            raise BadKeyFile(f"{file}:{number}: the key of {tenant} is the key of {tenants[key]} too")
    if not tenants:
        raise BadKeyFile(f"{file}: holds no key")
    return Tenants(tenants)


def salt_of(tenant: str | None, cache_salt: str | None) -> str | None:
    """The namespace of a request: no two pairs of tenant and salt have the same."""
    if tenant is None:
        return cache_salt or None
    # A tenant's name has no bracket, so that it is nobody's pair.
    return json.dumps([tenant, cache_salt]) if cache_salt else tenant


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()

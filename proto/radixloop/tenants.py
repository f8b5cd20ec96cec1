"""Keys of callers and the tenants that they stand for, as the runtime and the gateway both read them.

A tenant is a cache namespace of its own, and by the same name whichever way its calls come in.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from pathlib import Path

# Who may name every namespace, and do what touches all tenants.
OPERATOR = "*"

_LINE = re.compile(r"(\*|[A-Za-z0-9._-]{1,64})\s+([!-~]+)")


class BadKeyFile(ValueError):
    """The file of keys cannot be read; the message says where, and shows no key."""


class Keys:
    """Bearer keys by what their digest is: comparing digests of one length takes the same time whatever the keys are.

    Args:
        tenants: the tenant of each key.
    """

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = [(_digest(key), tenant) for key, tenant in tenants.items()]

    def tenant_of(self, key: str) -> str | None:
        """None for a key that is unknown."""
        digest, found = _digest(key), None
        # Every key is looked at, so that the time tells nothing of how many there are before the right one.
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def read_keys(file: Path) -> Keys:
    """Lines of `TENANT KEY`; a tenant may have several keys, and `*` stands for the operator. Raises BadKeyFile."""
    tenants: dict[str, str] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadKeyFile(f"{file}: {why}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        matched = _LINE.fullmatch(line.strip())
        if matched is None:
            raise BadKeyFile(f"{file}:{number}: must read TENANT KEY (tenant: letters, digits, . _ - or *; key: ASCII)")
        tenant, key = matched.groups()
        if tenants.setdefault(key, tenant) != tenant:
            raise BadKeyFile(f"{file}:{number}: the key of {tenant} is the key of {tenants[key]} too")
    if not tenants:
        raise BadKeyFile(f"{file}: holds no key")
    return Keys(tenants)


def bearer_of(header: str) -> str:
    """The key in an `Authorization: Bearer KEY` header; empty where it holds none."""
    kind, _, key = header.partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def salt_of(tenant: str | None, salt: str | None) -> str | None:
    """The salt of the namespace that a tenant means by `salt`: no two pairs have the same.

    No tenant, and the operator, mean what they say.
    """
    if tenant is None or tenant == OPERATOR:
        return salt or None
    # A tenant's name has no bracket, so that it is nobody's pair.
    return json.dumps([tenant, salt]) if salt else tenant


def is_salt_of(tenant: str, salt: str | None) -> bool:
    """Whether a namespace of this salt is the tenant's."""
    return salt is not None and (salt == tenant or salt.startswith(_pair_of(tenant)))


def salt_told(tenant: str, salt: str | None) -> str | None:
    """What the tenant calls the salt of one of its namespaces: the reverse of `salt_of`."""
    if salt is None or salt == tenant:
        return None
    try:
        told = json.loads(salt)[1]
    except (ValueError, LookupError):
        # Named by an operator, who may name everything.
        return salt
    return str(told)


def _pair_of(tenant: str) -> str:
    return f"[{json.dumps(tenant)}, "


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()

"""Keys of callers and the tenants that they stand for, as the runtime and the gateway both read them.

A tenant is a cache namespace of its own, and by the same name whichever way its calls come in.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Who may name every namespace, and do what touches all tenants.
OPERATOR = "*"
# Of requests and leases; also what an operator, and everybody where there are no keys, may name.
MAX_PRIORITY = 100

_LINE = re.compile(r"(\*|[A-Za-z0-9._-]{1,64})\s+(?!priority=)([!-~]+)(?:\s+priority=([0-9]{1,3}))?")
_PAIR = re.compile(r'\["([A-Za-z0-9._-]{1,64})", ')


class BadKeyFile(ValueError):
    """The file of keys cannot be read; the message says where, and shows no key."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whose a key is.

    Attributes:
        tenant: None where nobody is asked for a key.
        max_priority: the highest that requests with this key may name, beyond what they have without naming any.
    """

    tenant: str | None
    max_priority: int = 0


ANYBODY = KeyHolder(None, MAX_PRIORITY)


class Keys:
    """Bearer keys by what their digest is: comparing digests of one length takes the same time whatever the keys are.

    Args:
        holders: the holder of each key.
    """

    def __init__(self, holders: Mapping[str, KeyHolder]) -> None:
        self._holders = [(_digest(key), holder) for key, holder in holders.items()]

    def holder_of(self, key: str) -> KeyHolder | None:
        """None for a key that is unknown."""
        digest, found = _digest(key), None
        # Every key is looked at, so that the time tells nothing of how many there are before the right one.
        for known, holder in self._holders:
            if hmac.compare_digest(known, digest):
                found = holder
        return found


def read_keys(file: Path) -> Keys:
    """Lines of `TENANT KEY`, or `TENANT KEY priority=N` for the highest priority that requests with it may name.

    A tenant may have several keys, and `*` stands for the operator. Raises BadKeyFile.
    """
    holders: dict[str, KeyHolder] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadKeyFile(f"{file}: {why}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        matched = _LINE.fullmatch(line.strip())
        if matched is None or int(matched[3] or 0) > MAX_PRIORITY or (matched[1] == OPERATOR and matched[3]):
            raise BadKeyFile(
                f"{file}:{number}: must read TENANT KEY or TENANT KEY priority=N (tenant: letters, digits, . _ -, or * "
                f"without a priority; key: ASCII; N: 0 to {MAX_PRIORITY})"
            )
        tenant, key, priority = matched.groups()
        holder = KeyHolder(tenant, MAX_PRIORITY if tenant == OPERATOR else int(priority or 0))
        known = holders.setdefault(key, holder)
        if known.tenant != tenant:
            raise BadKeyFile(f"{file}:{number}: the key of {tenant} is the key of {known.tenant} too")
        if known != holder:
            raise BadKeyFile(f"{file}:{number}: this key of {tenant} has another priority in a line before")
    if not holders:
        raise BadKeyFile(f"{file}: holds no key")
    return Keys(holders)


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


def tenant_of_salt(salt: str | None) -> str | None:
    """The tenant whose namespace a salt is, by what `salt_of` makes; a salt of any other making is its own."""
    matched = None if salt is None else _PAIR.match(salt)
    return salt if matched is None else matched.group(1)


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

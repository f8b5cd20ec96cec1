"""Who makes the call that is being answered."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from radixloop.tenants import is_salt_of, salt_of, salt_told

from radix import Namespace


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller. `tenant` is None for an operator, and for everybody where nobody is asked for a key."""

    tenant: str | None = None

    def salt(self, named: str | None) -> str | None:
        """The salt that the caller means by what it wrote."""
        return named if self.tenant is None else salt_of(self.tenant, named)

    def owns(self, namespace: Namespace) -> bool:
        """Whether the caller may see, fill and forget what is cached there."""
        return self.tenant is None or is_salt_of(self.tenant, namespace.salt)

    def salt_told(self, namespace: Namespace) -> str | None:
        """What the caller calls the salt of a namespace of its own."""
        return namespace.salt if self.tenant is None else salt_told(self.tenant, namespace.salt)


# An RPC is a task of its own, and what is set before its handler runs is seen by nothing else.
_ANYBODY = Caller()
_CALLER: ContextVar[Caller] = ContextVar("caller", default=_ANYBODY)


def current_caller() -> Caller:
    """Who makes the call that this task answers."""
    return _CALLER.get()


def set_caller(caller: Caller) -> None:
    """Say so, for the rest of this task."""
    _CALLER.set(caller)

"""Who makes the call that is being answered."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from radixloop.tenants import MAX_PRIORITY, is_salt_of, salt_of, salt_told, tenant_of_salt

from radix import Namespace


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller.

    Attributes:
        tenant: None for an operator, and for everybody where nobody is asked for a key.
        max_priority: the highest that it may name.
    """

    tenant: str | None = None
    max_priority: int = MAX_PRIORITY

    def salt(self, named: str | None) -> str | None:
        """The salt that the caller means by what it wrote."""
        return named if self.tenant is None else salt_of(self.tenant, named)

    def owns(self, namespace: Namespace) -> bool:
        """Whether the caller may see, fill and forget what is cached there."""
        return self.tenant is None or is_salt_of(self.tenant, namespace.salt)

    def payer(self, namespace: Namespace) -> str | None:
        """On whose account work in a namespace is: an operator works for the tenant whose namespace it names."""
        return tenant_of_salt(namespace.salt) if self.tenant is None else self.tenant

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

"""The leases that requests asked for: renewed where they are asked for again, let go where a longer one covers them."""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from ... import keeping
from ...errors import NotFound, RadixloopError
from ...generate_options import namespace
from ..failures import from_runtime
from ..fleet import Member

log = logging.getLogger(__name__)

# Of a lease that names none.
DEFAULT_PRIORITY = 50
MAX_LOOPS = 4096
# A loop that moves its mark with each turn needs two or three: one that it asks for anew, and what that covers.
MAX_LEASES_OF_LOOP = 32

Outcome = Literal["taken", "renewed", "refused"]


@dataclass
class _Lease:
    id: int
    tokens: int
    digest: bytes
    expires_s: float
    priority: int
    covered: int


@dataclass(frozen=True)
class Leased:
    """What became of a wish: `covered` tokens are leased, or `why` they are not."""

    outcome: Outcome
    covered: int = 0
    why: str = ""
    lease_id: int | None = None


class LeaseBook:
    """Takes leases at the runtimes and remembers the last of each loop, so that one that asks with every turn has few.

    What is forgotten here, with the process or beyond the bounds, ends at the runtime by itself. `told` is called with
    each outcome.
    """

    def __init__(self, told: Callable[[Outcome], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._told = told
        self._clock = clock
        self._loops: OrderedDict[Hashable, list[_Lease]] = OrderedDict()

    async def keep(
        self,
        member: Member,
        salt: str | None,
        loop: str,
        ids: array[int],
        *,
        ttl_s: float,
        priority: int = DEFAULT_PRIORITY,
        label: str,
    ) -> Leased:
        """Leases the cached prefix of a prompt's token ids. Never raises for a runtime that refuses."""
        leased = await self._keep(member, salt, loop, ids, ttl_s, priority, label)
        self._told(leased.outcome)
        if leased.outcome == "refused":
            log.warning("a lease of %d tokens at %s was refused: %s", len(ids), member.target, leased.why)
        return leased

    async def take(
        self, member: Member, salt: str | None, ids: array[int], *, ttl_s: float, priority: int, label: str
    ) -> Leased:
        """A lease of the caller's own, which nothing else here renews or lets go."""
        leased = await _take(member, salt, ids, ttl_s, priority, label)
        self._told(leased.outcome)
        return leased

    async def release(self, member: Member, lease_id: int) -> None:
        """Ends a lease that was taken, unless it has ended."""
        try:
            await member.client.release_lease(lease_id)
        except RadixloopError as error:
            if not isinstance(error, NotFound):
                log.warning("lease %d at %s could not be released: %s", lease_id, member.target, error)

    async def _keep(
        self, member: Member, salt: str | None, loop: str, ids: array[int], ttl_s: float, priority: int, label: str
    ) -> Leased:
        # An awaited call may let another request of the loop in: what is worked on is out of the list meanwhile.
        key = (member.target, member.incarnation, salt, loop)
        held = self._loops.pop(key, [])
        held = [lease for lease in held if lease.expires_s > self._clock()]
        prefixes = _prefixes(held, ids)
        same = next((lease for lease in prefixes if lease.tokens == len(ids) and lease.priority == priority), None)
        until = self._clock() + ttl_s
        try:
            if same is not None:
                renewed = await self._renew(member, same, ttl_s, until)
                if renewed is not None:
                    return renewed
                held.remove(same)
            leased = await _take(member, salt, ids, ttl_s, priority, label)
            if leased.lease_id is not None:
                held.append(_Lease(leased.lease_id, len(ids), _digest(ids), until, priority, leased.covered))
                for lease in prefixes:
                    if lease is not same and lease.expires_s <= until and lease.priority <= priority:
                        held.remove(lease)
                        await self.release(member, lease.id)
            return leased
        finally:
            self._loops[key] = [*self._loops.pop(key, []), *held][-MAX_LEASES_OF_LOOP:]
            while len(self._loops) > MAX_LOOPS:
                self._loops.popitem(last=False)

    async def _renew(self, member: Member, lease: _Lease, ttl_s: float, until: float) -> Leased | None:
        """None where it has ended at the runtime."""
        if lease.expires_s < until:
            try:
                await member.client.renew_lease(lease.id, ttl_s)
            except NotFound:
                return None
            except RadixloopError as error:
                return Leased("refused", why=from_runtime(error).message)
            lease.expires_s = until
        return Leased("renewed", lease.covered, lease_id=lease.id)


async def _take(member: Member, salt: str | None, ids: array[int], ttl_s: float, priority: int, label: str) -> Leased:
    asked = keeping.lease(ids, None, namespace(salt, None), ttl_s=ttl_s, priority=priority, label=label)
    try:
        made = await member.client._unary(asked)
    except RadixloopError as error:
        return Leased("refused", why=from_runtime(error).message)
    return Leased("taken", made.covered_tokens or 0, lease_id=made.id)


def _prefixes(held: list[_Lease], ids: array[int]) -> list[_Lease]:
    """Those whose tokens are the beginning of `ids`; one pass over them whatever their number."""
    found, hasher, done, view = [], hashlib.blake2b(digest_size=16), 0, memoryview(ids)
    for lease in sorted(held, key=lambda lease: lease.tokens):
        if lease.tokens > len(ids):
            break
        hasher.update(view[done : lease.tokens])
        done = lease.tokens
        if hasher.digest() == lease.digest:
            found.append(lease)
    return found


def _digest(ids: array[int]) -> bytes:
    return hashlib.blake2b(memoryview(ids), digest_size=16).digest()

"""Which servers are compared, and how each is spoken to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from ..access import Access
from ..aio import AsyncRadixClient
from ..errors import Internal, InvalidArgument
from ..replay.driver import Streams

Kind = Literal["radix", "openai", "llama"]


@dataclass(frozen=True)
class TargetSpec:
    """`kind:address` as the user gives it; an address alone is a runtime of ours."""

    kind: Kind
    address: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.address}"


@dataclass(frozen=True)
class Target:
    """A server that is connected to. `counts_cache` says whether its books have told of cached tokens so far."""

    spec: TargetSpec
    streams: Streams

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def counts_cache(self) -> bool:
        return bool(getattr(self.streams, "counts_cache", True))


def parse_target(text: str) -> TargetSpec:
    """Raises InvalidArgument when `text` is no target."""
    head, _, rest = text.partition(":")
    if head in get_args(Kind):
        kind, address = head, rest
    else:
        kind, address = "radix", text
    if kind == "radix":
        if not address or "/" in address or ":" not in address:
            raise InvalidArgument(f"target is {text!r}: a runtime is HOST:PORT, others are openai:URL and llama:URL")
        return TargetSpec("radix", address)
    if not address.startswith(("http://", "https://")):
        raise InvalidArgument(f"target is {text!r}: {kind}: is followed by an http:// or https:// URL")
    address = address.rstrip("/").removesuffix("/v1")
    return TargetSpec("openai" if kind == "openai" else "llama", address)


@asynccontextmanager
async def open_targets(specs: Sequence[TargetSpec], access: Access | None = None) -> AsyncIterator[list[Target]]:
    """Connects to all of them; `access` is for the runtimes of ours.

    Raises PeerUnavailable or Unavailable, with the target's name, when one is not there.
    """
    async with AsyncExitStack() as stack:
        yield [Target(spec, await _streams(spec, stack, access)) for spec in specs]


async def _streams(spec: TargetSpec, stack: AsyncExitStack, access: Access | None) -> Streams:
    if spec.kind == "radix":
        return await stack.enter_async_context(AsyncRadixClient(spec.address, access=access))
    try:
        import httpx
    except ImportError:
        raise InvalidArgument(f"{spec.name} is spoken to over HTTP: install radixloop[bench]") from None
    from .http_target import CONNECT_TIMEOUT_S, HttpTarget, http_errors, refuse_failure
    from .wire import LlamaWire, OpenAIWire

    # Calls wait in the server's queue as long as it takes; only connecting has a limit. Each call has a connection of
    # its own: one that idled through the others' turns may be closed by the server just when it is used again.
    timeout, limits = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S), httpx.Limits(max_keepalive_connections=0)
    http = httpx.AsyncClient(base_url=spec.address, timeout=timeout, limits=limits)
    await stack.enter_async_context(http)
    if spec.kind == "llama":
        return HttpTarget(spec.name, http, LlamaWire())
    with http_errors(spec.name):
        response = await http.get("/v1/models")
        await refuse_failure(spec.name, response)
    try:
        model = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise Internal(f"{spec.name}: its /v1/models names no model") from None
    return HttpTarget(spec.name, http, OpenAIWire(str(model)))

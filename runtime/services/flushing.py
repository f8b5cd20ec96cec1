"""Forgetting what is cached, files behind the pool included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from radix import Namespace, PrefixStore
from runtime.engine import Engine


async def flush(
    engine: Engine, which: Callable[[PrefixStore], Iterable[Namespace | None]] = lambda store: (None,)
) -> tuple[int, int]:
    """Forget namespaces, None for everything; the tokens that were forgotten and the blocks that came free.

    Ends once no file holds them either.

    Args:
        which: called on the engine's thread.

    Raises:
        NotErased: a file may still hold them.
    """

    def forget(store: PrefixStore) -> tuple[int, int, Future[None] | None]:
        flushed = [store.flush(namespace) for namespace in which(store)]
        erased = engine.tiers.erased() if engine.tiers is not None else None
        return sum(tokens for tokens, _ in flushed), sum(blocks for _, blocks in flushed), erased

    tokens, blocks, erased = await asyncio.wrap_future(engine.call(forget))
    if erased is not None:
        await asyncio.wrap_future(erased)
    return tokens, blocks

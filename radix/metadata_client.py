"""How this project talks to Redis or Valkey."""

from __future__ import annotations

import contextlib
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from radix.metadata_schema import RUNTIMES_KEY, registration_key

_ALIASES = {"valkey://": "redis://", "valkeys://": "rediss://"}


class BadRedisUrl(ValueError):
    """A URL that names no Redis server."""


def connect(url: str, timeout_s: float) -> redis.Redis:
    """A client that waits at most `timeout_s` for each answer and never retries by itself.

    Nothing is sent before the first command. Raises BadRedisUrl.
    """
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    plain = url
    for alias, scheme in _ALIASES.items():
        if url.startswith(alias):
            plain = scheme + url[len(alias) :]
    try:
        return redis.Redis.from_url(plain, **options)
    except ValueError as error:
        raise BadRedisUrl(f"{without_password(url)} is no Redis URL: {error}") from None


def living_runtimes(client: redis.Redis) -> list[str]:
    """Ids of the runtimes whose lease is running, sorted.

    The others are taken off the list on the way, where the server lets this reader write. Raises redis.RedisError.
    """
    listed: Any = client.smembers(RUNTIMES_KEY)
    ids = sorted(listed)
    with client.pipeline(transaction=False) as pipe:
        for runtime_id in ids:
            pipe.exists(registration_key(runtime_id))
        alive = dict(zip(ids, pipe.execute(), strict=True))
    dead = [runtime_id for runtime_id, found in alive.items() if not found]
    if dead:
        with contextlib.suppress(redis.ResponseError):
            client.srem(RUNTIMES_KEY, *dead)
    return [runtime_id for runtime_id, found in alive.items() if found]


def without_password(url: str) -> str:
    """The URL as a log may show it."""
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at and credentials else url

"""Who sends a request, by the key that it carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from radixloop.tenants import ANYBODY, OPERATOR, KeyHolder, Keys, bearer_of, read_keys

from .failures import UNAUTHORIZED, ApiError


class Tenants:
    """Without keys everybody is let in, and namespaces are what requests name."""

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys

    def of(self, headers: Mapping[str, str]) -> KeyHolder:
        """Who sends a request, by `Authorization: Bearer KEY` or Anthropic's `x-api-key`. Raises ApiError 401."""
        if self._keys is None:
            return ANYBODY
        given = _key(headers)
        holder = self._keys.holder_of(given)
        if holder is None:
            why = "this API key is unknown" if given else "an API key is needed, as Authorization: Bearer KEY"
            raise ApiError(UNAUTHORIZED, why, code="invalid_api_key")
        return holder

    def operates(self, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from an operator, which everybody is without keys."""
        holder = None if self._keys is None else self._keys.holder_of(_key(headers))
        return self._keys is None or (holder is not None and holder.tenant == OPERATOR)


def _key(headers: Mapping[str, str]) -> str:
    return bearer_of(headers.get("authorization", "")) or headers.get("x-api-key", "")


def read_tenants(file: Path) -> Tenants:
    """The tenants of a file of keys. Raises radixloop.tenants.BadKeyFile."""
    return Tenants(read_keys(file))

"""Reading a request's JSON body into its model. A refusal names the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from ..channel import MAX_MESSAGE_BYTES
from .failures import BAD_REQUEST, TOO_LARGE, ApiError


class Body(BaseModel):
    """Base of request bodies: what it does not know is ignored, what it knows must have the right type."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


Model = TypeVar("Model", bound=Body)


async def read_body(http: Request, kind: type[Model]) -> Model:
    """The body as `kind`. Raises ApiError 413 above what a call to the runtime can carry, 400 for anything else."""
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise ApiError(TOO_LARGE, f"the body is longer than {MAX_MESSAGE_BYTES} bytes")
    return parse_body(bytes(body), kind)


def parse_body(body: bytes, kind: type[Model]) -> Model:
    """Raises ApiError naming the first field that is wrong."""
    if b"NaN" in body or b"Infinity" in body:
        # The words may stand in a text; as numbers they are no JSON, though the parser takes them.
        try:
            from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(BAD_REQUEST, f"the body is no JSON: {error}") from None
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False), body) from None


def _refusal(errors: Sequence[ErrorDetails], body: bytes) -> ApiError:
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(BAD_REQUEST, f"the body is no JSON: {first['msg']}")
    value = from_json(body)
    # Where a field may have several types there is an error for each: that which got furthest knows best.
    same_field = [error for error in errors if error["loc"][:1] == first["loc"][:1]]
    named = [
        (field_name(error["loc"], value, missing=error["type"] == "missing"), error["msg"]) for error in same_field
    ]
    field, reason = max(named, key=lambda told: len(told[0]))
    return ApiError(BAD_REQUEST, f"{field or 'the body'}: {reason}", param=field or None)


def field_name(place: tuple[int | str, ...], value: Any, *, missing: bool) -> str:
    """`messages[0].content` out of pydantic's path, which also holds names of types where a field may have several."""
    name = ""
    for rank, part in enumerate(place):
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            name, value = f"{name}[{part}]", value[part]
        elif isinstance(value, dict) and (part in value or (missing and rank == len(place) - 1)):
            name, value = f"{name}.{part}" if name else str(part), value.get(part)
    return name

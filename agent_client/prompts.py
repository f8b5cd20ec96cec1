"""The forms a prompt may take in Python, and token ids to and from the wire."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from radixloop.v1 import common_pb2 as pb

from .errors import InvalidArgument
from .messages import ChatMessage, chat_to_proto

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A buffer is an array.array, a numpy array, a memoryview of integers, or bytes that hold little-endian int32.
TokenIds: TypeAlias = "Sequence[int] | Buffer"

_INT_FORMATS = frozenset("bBhHiIlLqQ")


@dataclass(frozen=True)
class Chat:
    """A chat prompt with everything that goes into the template."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any] | str] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


# Text, token ids, chat messages, or messages with tools.
Prompt: TypeAlias = "str | Chat | Sequence[ChatMessage] | TokenIds"


def prompt_to_proto(prompt: Prompt) -> pb.Prompt:
    """Raises InvalidArgument when `prompt` is none of the forms."""
    if isinstance(prompt, str):
        return pb.Prompt(text=prompt)
    if isinstance(prompt, Chat):
        return pb.Prompt(chat=chat_to_proto(prompt.messages, prompt.tools, prompt.template_kwargs))
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping):
        return pb.Prompt(chat=chat_to_proto(prompt))
    return pb.Prompt(token_ids=ids_to_proto(prompt))  # type: ignore[arg-type]


def ids_to_proto(ids: TokenIds) -> pb.TokenIds:
    """Token ids as little-endian int32 bytes, without a copy through Python integers where `ids` is a buffer."""
    if isinstance(ids, bytes | bytearray):
        if len(ids) % 4:
            raise InvalidArgument(f"token_ids has {len(ids)} bytes: little-endian int32 needs a multiple of 4")
        return pb.TokenIds(le_int32=bytes(ids))
    try:
        view = memoryview(ids)  # type: ignore[arg-type]
    except TypeError:
        return pb.TokenIds(le_int32=_pack(ids))
    code = view.format.lstrip("@=<")
    if view.ndim != 1 or code not in _INT_FORMATS:
        raise InvalidArgument(
            f"token_ids is a buffer of format {view.format!r} and {view.ndim} dimensions: one row of integers is needed"
        )
    if view.itemsize == 4 and code in "il" and sys.byteorder == "little":
        return pb.TokenIds(le_int32=view.tobytes())
    return pb.TokenIds(le_int32=_pack(view.tolist()))


def ids_from_proto(ids: pb.TokenIds) -> array[int]:
    """The ids as an array of int32, whichever of the two forms was sent."""
    if ids.ids:
        return array("i", ids.ids)
    out = array("i")
    out.frombytes(ids.le_int32)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def _pack(ids: Any) -> bytes:
    try:
        packed = array("i", ids)
    except OverflowError:
        raise InvalidArgument("token_ids holds a number that is no int32") from None
    except TypeError:
        raise InvalidArgument(
            f"prompt is {type(ids).__name__}: text, token ids, a Chat or a list of message mappings is needed"
        ) from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()

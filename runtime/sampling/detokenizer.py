"""Token ids to text, one token at a time, without cutting a character in two."""

from __future__ import annotations

import codecs
import functools
import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.tool_calls.formats import MARKERS

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# A character of UTF-8 has at most 4 bytes, so this many tokens at the end of a prompt show what it left unfinished.
_CHARACTER_BYTES = 4
# Tokens of context that settle whether a piece keeps its leading space, and how far back they are looked for.
_CONTEXT_TOKENS = 4
_CONTEXT_REACH = 64


class IncrementalDetokenizer:
    """The text of one choice, piece by piece, as it follows the text of its prompt.

    The pieces joined are what `tokenizer.decode(prompt + output)` adds to `tokenizer.decode(prompt)` (without clean-up
    of spaces). A piece ends with a whole character; bytes of an unfinished one wait for the next token, and bytes that
    no character begins with become U+FFFD. The work per token does not grow with the text.

    Where a tokenizer spells unknown characters as `<0x..>` tokens and a run of these turns out not to be UTF-8, the
    characters before the fault have been emitted; `decode` would replace the whole run.
    """

    def __init__(self, tokenizer: Any, prompt: npt.NDArray[np.int32]) -> None:
        """`prompt` is int32 [T] token ids, possibly none; only its tail is looked at."""
        self._tokenizer = tokenizer
        self._skipped = silent_token_ids(tokenizer)
        self._spellings = _spellings(tokenizer)
        steps = _decoder_steps(tokenizer)
        self._byte_level = steps == {"ByteLevel"}
        self._byte_fallback = "ByteFallback" in steps
        # Without a byte step, the tokens of a fast tokenizer are whole characters.
        self._may_split = not steps or ("ByteLevel" in steps and not self._byte_level)
        self._bytes: _LossyBytes | _ByteRun = _LossyBytes() if self._byte_level else _ByteRun()
        self._context: list[int] = []
        self._pending: list[int] = []
        self._run: list[int] = []
        self._context_text = ""
        self._prime([int(token) for token in prompt[-_CONTEXT_REACH:]])

    def append(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        if token_id in self._skipped:
            return ""
        piece = self._bytes_of(token_id)
        if piece is not None:
            self._run = [*self._run, token_id][-_CONTEXT_TOKENS:]
            return self._bytes.feed(piece)
        if self._run and not self._context:
            # Text that began with byte tokens has begun: the next piece is not the first.
            self._context = self._run
            self._context_text = self._decode(self._context)
        return self._bytes.finish() + self._append_text(token_id)

    def flush(self) -> str:
        """What is left once no more tokens come: U+FFFD for a character that stayed unfinished."""
        return self._bytes.finish() + self._settle(self._window_text())

    def _prime(self, tail: list[int]) -> None:
        tail = [token for token in tail if token not in self._skipped]
        for token in tail[-_CHARACTER_BYTES:]:
            self.append(token)
        texts = [token for token in tail if self._bytes_of(token) is None]
        self._pending = []
        self._context = texts[-_CONTEXT_TOKENS:]
        self._context_text = self._decode(self._context)

    def _append_text(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._window_text()
        unfinished = self._may_split and text.endswith(_REPLACEMENT) and len(self._pending) < _CHARACTER_BYTES
        return "" if unfinished else self._settle(text)

    def _window_text(self) -> str:
        return self._decode(self._context + self._pending)

    def _settle(self, text: str) -> str:
        new = text[len(self._context_text) :]
        if self._pending:
            self._context = (self._context + self._pending)[-_CONTEXT_TOKENS:]
            self._pending = []
            self._context_text = self._decode(self._context)
        return new

    def _decode(self, token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _bytes_of(self, token_id: int) -> bytes | None:
        """The bytes that a token stands for, where the tokenizer spells text in bytes; None where it is plain text."""
        if not self._byte_level and not self._byte_fallback:
            return None
        try:
            return self._spellings[token_id]
        except KeyError:
            spelling = self._spellings[token_id] = self._spell(token_id)
            return spelling

    def _spell(self, token_id: int) -> bytes | None:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if self._byte_level:
            if token is None:
                return b""
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:
                # An added token is spelt as it is.
                return str(token).encode()
        match = _BYTE_TOKEN.fullmatch(token) if token is not None else None
        return bytes.fromhex(match.group(1)) if match else None


@functools.lru_cache(maxsize=8)
def special_token_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that `decode(skip_special_tokens=True)` leaves out."""
    added = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added.union(tokenizer.all_special_ids))


@functools.lru_cache(maxsize=8)
def silent_token_ids(tokenizer: Any) -> frozenset[int]:
    """The special tokens that a reply's text leaves out: all but those that mark tool calls in it."""
    marks = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.content in MARKERS}
    return special_token_ids(tokenizer) - marks


@functools.lru_cache(maxsize=8)
def _spellings(tokenizer: Any) -> dict[int, bytes | None]:
    """The bytes of the tokens that were met so far: to ask a tokenizer takes longer than all else about a token."""
    return {}


@functools.lru_cache(maxsize=8)
def _decoder_steps(tokenizer: Any) -> frozenset[str]:
    """The kinds of step in a fast tokenizer's decoder; empty for a tokenizer in Python."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return frozenset()
    state = json.loads(decoder.__getstate__())
    return frozenset(step["type"] for step in state.get("decoders", [state]))


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself if it can be seen, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_alphabet()


class _LossyBytes:
    """Byte-level BPE: the text is one stream of UTF-8, where each faulty sequence becomes one U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _ByteRun:
    """Byte fallback: a run of byte tokens is UTF-8 of its own; in a faulty run each byte becomes one U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._faulty = False

    def feed(self, piece: bytes) -> str:
        if self._faulty:
            return _REPLACEMENT * len(piece)
        waiting = len(self._decoder.getstate()[0])
        try:
            return self._decoder.decode(piece)
        except UnicodeDecodeError:
            self._faulty = True
            return _REPLACEMENT * (waiting + len(piece))

    def finish(self) -> str:
        waiting = 0 if self._faulty else len(self._decoder.getstate()[0])
        self._decoder.reset()
        self._faulty = False
        return _REPLACEMENT * waiting

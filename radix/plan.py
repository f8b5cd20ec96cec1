"""Capacity planning: what a model's KV cache weighs and how much agent work fits a memory.

    bytes a token = 2 x layers x kv_heads x head_dim x bytes a value (and scales, below 16 bits)

The heads are the key-value heads. Formulas that count query heads are wrong for models with grouped queries (GQA): four
query heads of Llama-3-8B read one key-value head, so a token keeps 128 KiB in FP16 and not 512 KiB.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from radix.errors import InvalidArgument
from radix.kv_bytes import PRECISIONS, head_bytes
from radix.model_shapes import LayerGroup, ModelShape
from radix.sizes import format_bytes

_ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "fp8": "fp8_e4m3"}


def dtype_named(name: str) -> str:
    """Return the dtype as PRECISIONS names it; `int8/int4` is keys and values apart.

    Raises InvalidArgument, which lists the names.
    """
    named = [_ALIASES.get(part.lower(), part.lower()) for part in name.split("/")]
    if len(named) > 2 or any(part not in PRECISIONS for part in named):
        raise InvalidArgument(f"{name!r} is no dtype: known are {', '.join(PRECISIONS)}")
    return "/".join(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent that starts at some tokens and gains some a turn: `start + k * per_turn` after turn k."""

    start: int
    per_turn: int
    turns: int

    def tokens(self, turn: int) -> int:
        return self.start + turn * self.per_turn


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of a profile: after this turn, `bytes` for one session, blocks being whole."""

    turn: int
    tokens: int
    bytes: int
    all_sessions_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One model in one memory.

    Attributes:
        memory: bytes for KV alone.
    """

    shape: ModelShape
    dtype: str
    memory: int
    block_size: int

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise InvalidArgument(
                f"memory is {format_bytes(self.memory)}: one block of {self.block_size} tokens of {self.shape.name} "
                f"takes {format_bytes(self.block_bytes)}"
            )

    @property
    def bytes_per_token(self) -> int:
        """Every layer keeping every token, as the prefix store does: any prefix of it can be found again."""
        return sum(group.layers * self._layer_bytes(group) for group in self.shape.groups)

    @property
    def beyond_windows_bytes(self) -> int:
        """Bytes that one more token adds where window layers drop what they can no longer read, once they are full."""
        return sum(group.layers * self._layer_bytes(group) for group in self.shape.groups if group.window is None)

    @property
    def query_heads_bytes(self) -> int:
        """Bytes a token by the formula that counts query heads."""
        return -(-self.bytes_per_token * self.shape.query_heads_values // self.shape.values)

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def blocks(self) -> int:
        return self.memory // self.block_bytes

    @property
    def tokens(self) -> int:
        """Tokens that fit, in whole blocks."""
        return self.blocks * self.block_size

    def session_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def session_bytes(self, tokens: int) -> int:
        return self.session_blocks(tokens) * self.block_bytes

    def sessions(self, tokens: int) -> int:
        """Return how many sessions of so many tokens fit when they share nothing."""
        return self.blocks // self.session_blocks(tokens)

    def sessions_within_windows(self, tokens: int) -> int:
        """Return how many sessions fit in an engine whose window layers drop what they can no longer read."""
        whole = self.session_blocks(tokens) * self.block_size
        kept = sum(
            group.layers * self._layer_bytes(group) * min(whole, group.window or whole) for group in self.shape.groups
        )
        return self.memory // kept

    def turns(self, profile: Profile, sessions: int) -> list[Turn]:
        """Return turns 0, the start, to `profile.turns`."""
        result = []
        for turn in range(profile.turns + 1):
            tokens = profile.tokens(turn)
            size = self.session_bytes(tokens)
            fits = sessions * self.session_blocks(tokens) <= self.blocks
            result.append(Turn(turn, tokens, size, sessions * size, fits))
        return result

    def full_at_turn(self, profile: Profile, sessions: int) -> int:
        """Return the first turn, within the profile or beyond it, after which so many sessions no longer fit."""
        room = self.blocks // sessions * self.block_size
        return 0 if profile.start > room else (room - profile.start) // profile.per_turn + 1

    def as_json(self, session_tokens: list[int], profile: Profile | None, sessions: int) -> dict[str, Any]:
        """Return plain values. `sessions` counts those that run the profile."""
        shape = self.shape
        values: dict[str, Any] = {
            "model": shape.name,
            "source": shape.source,
            "attention": shape.attention,
            "layers": shape.layers,
            "window_layers": shape.window_layers,
            "window": shape.widest_window,
            "query_heads": shape.query_heads,
            "kv_heads": shape.kv_heads,
            "context": shape.context,
            "remarks": list(shape.remarks),
            "dtype": self.dtype,
            "block_size": self.block_size,
            "memory_bytes": self.memory,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_token_beyond_windows": self.beyond_windows_bytes,
            "bytes_per_token_by_query_heads": self.query_heads_bytes,
            "blocks": self.blocks,
            "tokens": self.tokens,
            "sessions": [
                {
                    "session_tokens": tokens,
                    "session_bytes": self.session_bytes(tokens),
                    "sessions": self.sessions(tokens),
                    "sessions_within_windows": self.sessions_within_windows(tokens),
                }
                for tokens in session_tokens
            ],
        }
        if profile is not None:
            values["profile"] = {
                **asdict(profile),
                "sessions": sessions,
                "full_at_turn": self.full_at_turn(profile, sessions),
                "after_turn": [asdict(turn) for turn in self.turns(profile, sessions)],
            }
        return values

    def _layer_bytes(self, group: LayerGroup) -> int:
        """Bytes a token in one layer, scales counted."""
        keys, _, values = self.dtype.partition("/")
        each = head_bytes(keys, "keys", group.key_dim) + head_bytes(values or keys, "values", group.value_dim)
        return group.heads * each

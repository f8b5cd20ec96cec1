"""Tokenises prompts so that what is known of them keeps its ids, and remembers what models wrote."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.histories.boundaries import Boundaries
from runtime.histories.continuation import continuation_ids
from runtime.histories.text_memory import Ids, MemoryBooks, Piece, TextMemory
from runtime.sampling.detokenizer import silent_token_ids

# Tokens before a reply with which it is decoded: the first token of a text may lose its space.
_CONTEXT_TOKENS = 8
# A stop string is in the last tokens of a reply and not in its text.
_HIDDEN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Begun:
    """A prompt whose reply can be remembered.

    Attributes:
        at: the piece behind which the prompt's last piece stands.
        text, ids: of that last piece, which the reply goes on with.
        context: the prompt's last ids.
        may_go_on: the text may go on behind the reply without a cut.
    """

    at: Piece
    text: str
    ids: Ids
    context: tuple[int, ...]
    may_go_on: bool


@dataclass(frozen=True, slots=True)
class HistoryBooks:
    """Counts since the start: prompt tokens by where they came from, replies by whether they were remembered."""

    memory: MemoryBooks
    remembered_tokens: int
    tokenised_tokens: int
    replies_kept: int
    replies_not_kept: int


class HistoryEncoder:
    """For any thread.

    Texts are known by key: what one namespace sent or got is nothing to another.

    Args:
        added: how many ids the tokenizer puts in front of a text when it is asked for special tokens; None where it
            adds some behind, so that no text could be gone on with.
    """

    def __init__(self, tokenizer: Any, boundaries: Boundaries, memory: TextMemory, added: int | None) -> None:
        self._tokenizer = tokenizer
        self._boundaries = boundaries
        self._memory = memory
        self._added = added
        self._lock = threading.Lock()
        self._remembered = self._tokenised = self._kept = self._not_kept = 0

    def books(self) -> HistoryBooks:
        return HistoryBooks(self._memory.books(), self._remembered, self._tokenised, self._kept, self._not_kept)

    def encode(
        self,
        namespace: Hashable,
        text: str,
        tokenise: Callable[[str], Sequence[int]],
        *,
        special_added: bool,
        plain_tokens: int = 0,
    ) -> tuple[Ids, Begun | None]:
        """int32 ids of a prompt's text, and what to give to `learn`. The prompt is remembered.

        Args:
            tokenise: ids of the whole text, as without a memory.
            special_added: it adds special tokens.
            plain_tokens: so many leading ids must be what `tokenise` gives.
        """
        if self._unfit(text, special_added):
            return np.array(tokenise(text), np.int32), None
        cuts = self._boundaries.cuts(text)
        known = self._memory.find((namespace, special_added), text, cuts, plain_tokens)
        fresh = self._fresh(text, known.chars, tokenise)
        ids = np.concatenate([*known.ids, fresh])
        with self._lock:
            self._remembered += len(ids) - len(fresh)
            self._tokenised += len(fresh)
        added = self._added or 0 if special_added and not known.chars else 0
        later = [cut for cut in cuts if cut > known.chars]
        left = self._remember(known.at, text, later, known.chars, fresh, added)
        if left is None:
            return ids, None
        may_go_on = special_added or not self._boundaries.closes_replies
        return ids, Begun(*left, tuple(ids[-_CONTEXT_TOKENS:].tolist()), may_go_on)

    def look_up(
        self,
        namespace: Hashable,
        text: str,
        tokenise: Callable[[str], Sequence[int]],
        *,
        special_added: bool,
        plain_tokens: int = 0,
    ) -> Ids:
        """The ids that `encode` would give now. Nothing is remembered, counted or used by it."""
        if self._unfit(text, special_added):
            return np.array(tokenise(text), np.int32)
        known = self._memory.peek((namespace, special_added), text, self._boundaries.cuts(text), plain_tokens)
        if known is None:
            return np.array(tokenise(text), np.int32)
        return np.concatenate([*known.ids, self._fresh(text, known.chars, tokenise)])

    def learn(self, begun: Begun, output: Sequence[int], said: str) -> None:
        """Remember a reply, if its ids stand for its text.

        Args:
            output: the ids that the model chose, an end token included.
            said: the text that the caller got.
        """
        kept = bool(said) and self._keep(begun, output, said)
        with self._lock:
            self._kept += kept
            self._not_kept += not kept
        stripped = said.rstrip()
        if kept and stripped and stripped != said:
            # Clients and templates cut the white space off that a reply ends with.
            self._keep(begun, output, stripped)

    def _keep(self, begun: Begun, output: Sequence[int], said: str) -> bool:
        reply = self._ids_of(begun, output, said)
        if reply is None:
            return False
        piece = begun.text + said, np.concatenate([begun.ids, np.array(reply, np.int32)])
        self._memory.add(begun.at, [piece], generated=True, may_end=begun.may_go_on)
        return True

    def _unfit(self, text: str, special_added: bool) -> bool:
        """Whether nothing could be known of a text, nor go on behind it."""
        return not text or (special_added and self._added is None)

    def _fresh(self, text: str, known_chars: int, tokenise: Callable[[str], Sequence[int]]) -> Ids:
        """The ids of what is not known."""
        if not known_chars:
            return np.array(tokenise(text), np.int32)
        rest = text[known_chars:]
        return np.array(continuation_ids(self._tokenizer, rest) if rest else (), np.int32)

    def _remember(
        self, at: Piece, text: str, cuts: list[int], start: int, fresh: Ids, added: int
    ) -> tuple[Piece, str, Ids] | None:
        """Remember the pieces of `text` from `start` on, whose ids are `fresh`, but the last: that may go on.

        None where special tokens are spelt out, or are otherwise not where they stand in the text.
        """
        runs = self._boundaries.runs(fresh[added:])
        if len(runs) != len(cuts) + 1:
            return None
        runs[0] = np.concatenate([fresh[:added], runs[0]])
        pieces = [
            # A copy: a view would keep the whole prompt's ids for as long as any piece of it is remembered.
            (text[begin:end], run.copy())
            for begin, end, run in zip([start, *cuts], [*cuts, len(text)], runs, strict=True)
        ]
        *whole, (last, ids) = pieces
        # What follows an end in the middle of a piece was tokenised by itself.
        at = self._memory.add(at, whole[:1], generated=start > 0 and not self._boundaries.at(text, start))
        at = self._memory.add(at, whole[1:], generated=False)
        return at, last, ids

    def _ids_of(self, begun: Begun, output: Sequence[int], said: str) -> list[int] | None:
        """Ids that decode to `said`: the output up to what the text leaves out, and the rest tokenised."""
        before = self._decode(begun.context)
        silent = silent_token_ids(self._tokenizer)
        # The text leaves a special token out, wherever it stands: behind the first no ids could stand for it.
        most = next((place for place, token in enumerate(output) if token in silent), len(output))
        for length in range(most, max(0, most - _HIDDEN_TOKENS), -1):
            whole = self._decode([*begun.context, *output[:length]])
            text = whole[len(before) :]
            if not whole.startswith(before) or not said.startswith(text) or (text != said and text.endswith("\ufffd")):
                continue
            rest = said[len(text) :]
            ids = [*output[:length], *(continuation_ids(self._tokenizer, rest) if rest else ())]
            return ids if not rest or self._decode([*begun.context, *ids]) == before + said else None
        return None

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def added_in_front(tokenizer: Any) -> int | None:
    """How many ids the tokenizer adds before a text; None where it adds some behind it."""
    alone: list[int] = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    added: list[int] = tokenizer("a", add_special_tokens=True, verbose=False)["input_ids"]
    return len(added) - len(alone) if added[len(added) - len(alone) :] == alone else None

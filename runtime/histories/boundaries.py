"""Where a text may be cut so that tokenising both sides by themselves is what tokenising the whole is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.sampling.detokenizer import special_token_ids


@dataclass(frozen=True)
class Boundaries:
    """The special tokens at whose starts a text is cut.

    Attributes:
        pattern: finds them in a text; None where there are none.
        ids: int32, rising.
        closes_replies: the template writes one right behind a reply, so that a reply ends with a piece.
    """

    pattern: re.Pattern[str] | None = None
    ids: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    closes_replies: bool = False

    def cuts(self, text: str) -> list[int]:
        """Where pieces begin in `text`, rising; without the first."""
        if self.pattern is None:
            return []
        return [found.start() for found in self.pattern.finditer(text) if found.start() > 0]

    def at(self, text: str, place: int) -> bool:
        """Whether a piece begins there."""
        return self.pattern is not None and self.pattern.match(text, place) is not None

    def runs(self, ids: npt.NDArray[np.int32]) -> list[npt.NDArray[np.int32]]:
        """The ids of each piece; the first begins at the first id, whatever that is."""
        starts = np.flatnonzero(np.isin(ids, self.ids))
        return np.split(ids, starts[starts > 0]) if len(self.ids) else [ids]


NO_BOUNDARIES = Boundaries()


def find_boundaries(
    tokenizer: Any, tokenise: Callable[[str], list[int]], chats: Iterable[tuple[str, str]]
) -> Boundaries:
    """The boundaries that a template writes.

    Args:
        tokenise: ids of a text, no special tokens added.
        chats: rendered samples, each with the last reply in it, which stands there once.
    """
    special = special_token_ids(tokenizer)
    samples = list(chats)
    found: dict[str, int] = {}
    for token_id, token in tokenizer.added_tokens_decoder.items():
        # One that takes the white space before it would leave it to the piece before.
        plain = token_id in special and not (token.lstrip or token.normalized or token.single_word)
        if plain and token.content and any(token.content in text for text, _ in samples):
            found[token.content] = token_id
    if not found:
        return NO_BOUNDARIES
    # The longest first: one may begin like another.
    pattern = re.compile("|".join(re.escape(content) for content in sorted(found, key=len, reverse=True)))
    ends = [pattern.match(text, text.index(reply) + len(reply)) for text, reply in samples if text.count(reply) == 1]
    boundaries = Boundaries(pattern, np.array(sorted(found.values()), np.int32), bool(ends) and None not in ends)
    return boundaries if all(_cuts_well(boundaries, tokenise, text) for text, _ in samples) else NO_BOUNDARIES


def _cuts_well(boundaries: Boundaries, tokenise: Callable[[str], list[int]], text: str) -> bool:
    whole = tokenise(text)
    cuts = boundaries.cuts(text)
    if len(boundaries.runs(np.array(whole, np.int32))) != len(cuts) + 1:
        return False
    return all(tokenise(text[:cut]) + tokenise(text[cut:]) == whole for cut in cuts)

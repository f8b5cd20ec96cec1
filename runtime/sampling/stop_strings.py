"""Ending a text before a stop string, however the text is cut into pieces."""

from __future__ import annotations


class StopStringMatcher:
    """Passes text through and holds back what may be the start of a stop string.

    The text ends where a stop string is complete for the first time; of several that are complete at the same
    character, the longest counts. What is emitted does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = [(stop, _fallbacks(stop)) for stop in stops if stop]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._stopped_by: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text; return what is safe to emit and, at the end, the stop string that came.

        After that, every call returns no text and the same stop string.
        """
        if self._stopped_by is not None:
            return "", self._stopped_by
        if not self._stops:
            return text, None
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            stop = self._step(buffer[position])
            if stop is not None:
                self._stopped_by = stop
                self._held = ""
                return buffer[: position + 1 - len(stop)], stop
        safe = len(buffer) - max(self._matched)
        self._held = buffer[safe:]
        return buffer[:safe], None

    def flush(self) -> str:
        """What is still held back, once no more text will come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _step(self, char: str) -> str | None:
        longest: str | None = None
        for index, (stop, fallbacks) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = fallbacks[matched - 1]
            if stop[matched] == char:
                matched += 1
            self._matched[index] = matched
            if matched == len(stop) and (longest is None or len(stop) > len(longest)):
                longest = stop
        return longest


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper border: where matching goes on after a mismatch."""
    lengths = [0] * len(stop)
    border = 0
    for position in range(1, len(stop)):
        while border and stop[border] != stop[position]:
            border = lengths[border - 1]
        if stop[border] == stop[position]:
            border += 1
        lengths[position] = border
    return lengths

"""Where a JSON object ends in text that is still coming."""

from __future__ import annotations

import re

_NOTABLE = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Looks at each piece of the text once. The text begins with the object."""

    def __init__(self) -> None:
        self.reached = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """How many characters of the next piece belong to the object."""
        at = 0
        while not self.reached and at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _NOTABLE.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._take(found.group())
        return at

    def _take(self, char: str) -> None:
        if self._in_string:
            self._escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.reached = self._depth == 0

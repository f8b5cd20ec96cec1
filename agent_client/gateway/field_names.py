"""What a request's body calls the fields that the runtime names in its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# "sampling.top_p is 1.5: must be ...", "messages[0].content is int: ...", "json_schema/properties/a is 5: ...".
_NAMED = re.compile(
    r"(?:sampling\.|namespace\.|prompt\.chat\.)?([a-z_]+)(\S*(?: #/\S*)?)(?= is .*: | is missing| holds )", re.DOTALL
)
# What of a place is a field of the body, and not a place in a schema.
_FIELD = re.compile(r"(?:\[\d+\]|\.[a-z_]+)*")
# Of a prompt; a body has but one.
_FORMS = (".chat", ".text", ".token_ids")
_EVERYWHERE = {"salt": "cache_salt", "template_kwargs": "chat_template_kwargs"}


@dataclass(frozen=True)
class FieldNames:
    """The names of one request.

    Attributes:
        heads: by the runtime's name of a field.
        parts: of what comes behind it, what to write in place of what, in this order.
    """

    heads: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    def told(self, message: str) -> tuple[str, str | None]:
        """The message in the body's words, and the field that it names; None where it names none."""
        named = _NAMED.match(message)
        if named is None:
            return message, None
        head, place = named.groups()
        if head == "prompt" and place in _FORMS:
            place = ""
        head = self.heads.get(head, _EVERYWHERE.get(head, head))
        for theirs, ours in self.parts.items():
            place = place.replace(theirs, ours)
        found = _FIELD.match(place)
        return f"{head}{place}{message[named.end() :]}", head + (found.group() if found else "")


RUNTIMES_NAMES = FieldNames()


def constraint_names(format_field: str) -> dict[str, str]:
    """Heads of the constraints: of `format_field`, which holds a schema, and of vLLM's `structured_outputs`."""
    structured = ("regex", "grammar", "choice", "structural_tag")
    return {"json_schema": format_field, **{name: f"structured_outputs.{name}" for name in structured}}

"""What a schema says of a string, as the grammar library enforces it.

A pattern is compiled into the text between the quotes as it stands there. So none may ask for a character that JSON
writes in another way, and a pattern and a length are not kept at once: where a pattern is one repeated class the length
becomes its bound.
"""

from __future__ import annotations

import re

from runtime.grammar.schema_parts import Schema, SchemaRefused, count_of

MAX_PATTERN = 4096
# Of the formats that the library knows, those whose texts validate; and stricter texts for the others of these.
_FORMATS = frozenset({"uuid", "email", "uri", "uri-reference", "ipv6", "hostname", "duration", "json-pointer"})
_MONTH_DAY = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_DATE = f"(19|20)[0-9]{{2}}-({_MONTH_DAY})"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
}
# A class, or a character that means itself, repeated: all that a length can be made part of.
_REPEATED = re.compile(r"\^(\[(?:[^\]\\]|\\.)+\]|\\[dwsS]|[\w -])([*+]|\{(\d+)(,?)(\d*)\})\$")
_LOOK_AROUND = re.compile(r"(?<!\\)\(\?(?:[=!]|<[=!])")
# Characters that JSON escapes: quote, backslash, controls.
_ESCAPED = re.compile(r'"|\\\\|\\[tnrfv0]|\\c|\\x(?:[01]|22|5[cC])|\\u00(?:[01]|22|5[cC])|[\x00-\x1f]')
# An escape, a class, the beginning of a group, or one character.
_PART = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\((?:\?(?:P<\w+>|P?.))?|.", re.DOTALL)
_CLASS = re.compile(r"(?<!\\)((?:\\\\)*)\[(?:[^\]\\]|\\.)*\]")


def string_rules(own: Schema, place: str) -> Schema:
    """`pattern`, `format`, `minLength` and `maxLength` of a string, as they are compiled. Raises SchemaRefused."""
    low, high = count_of(own, "minLength", place), count_of(own, "maxLength", place)
    pattern, form = own.get("pattern"), own.get("format")
    if pattern is not None:
        return {"pattern": _guarded(_bounded(_checked(pattern, place), low, high, place), place)}
    if low or high is not None:
        return {"minLength": low or 0} | ({} if high is None else {"maxLength": high})
    if form in _PATTERNS:
        return {"pattern": _guarded(_PATTERNS[form], place)}
    return {"format": form} if form in _FORMATS else {}


def _checked(pattern: object, place: str) -> str:
    spot = f"{place}/pattern"
    if not isinstance(pattern, str):
        raise SchemaRefused(spot, pattern, "must be a regular expression")
    if len(pattern) > MAX_PATTERN:
        raise SchemaRefused(spot, f"{len(pattern)} characters", f"at most {MAX_PATTERN}")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SchemaRefused(spot, pattern, f"no regular expression ({error})") from None
    if _LOOK_AROUND.search(pattern):
        raise SchemaRefused(spot, pattern, "looking ahead or behind cannot be enforced")
    # In a class the library leaves such characters out by itself.
    escaped = _ESCAPED.search(_CLASS.sub(r"\1", pattern))
    if escaped:
        raise SchemaRefused(spot, pattern, f"it asks for {escaped.group()!r}, which JSON escapes: that is not enforced")
    return pattern


def _bounded(pattern: str, low: int | None, high: int | None, place: str) -> str:
    if not low and high is None:
        return pattern
    repeated = _REPEATED.fullmatch(pattern)
    if repeated is None:
        raise SchemaRefused(
            f"{place}/pattern", pattern, "not beside minLength or maxLength: write the length into the pattern"
        )
    what, times, least, comma, most = repeated.groups()
    own_low = int(least) if least else int(times == "+")
    own_high = int(most) if most else None if times in "*+" or comma else own_low
    low = max(low or 0, own_low)
    high = min((bound for bound in (high, own_high) if bound is not None), default=None)
    if high is not None and high < low:
        raise SchemaRefused(f"{place}/pattern", pattern, "no text is of that length and pattern")
    return f"^{what}{{{low},{'' if high is None else high}}}$"


def _guarded(pattern: str, place: str) -> str:
    """The same pattern with an empty choice at both ends of each group.

    Without it the library lets the loops inside of a repeated group begin again in place of the group.
    """
    made: list[str] = []
    at = 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        assert found is not None
        part = found.group()
        at = found.end()
        if part[0] == "(":
            if part not in ("(", "(?:") and not part.startswith("(?P<"):
                raise SchemaRefused(f"{place}/pattern", pattern, f"{part} cannot be enforced")
            part = "(?:(?:|)(?:"
        elif part == ")":
            part = ")(?:|))"
        made.append(part)
    return "".join(made)

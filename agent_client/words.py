"""Figures as people read them."""

from __future__ import annotations

from .results import Generation


def usage_line(generation: Generation) -> str:
    """What a call cost, in one line."""
    usage, timing = generation.usage, generation.timing
    share = usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0
    return (
        f"{usage.prompt_tokens:,} prompt tokens, {usage.cached_tokens:,} of them cached ({share:.0%}); "
        f"{usage.output_tokens:,} written ({generation.finish_reason}); first after {seconds(timing.ttft_s)}, "
        f"then one every {seconds(timing.itl_p50_s)}"
    )


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def namespace_name(salt: str | None, adapter: str | None) -> str:
    """On one line and printable, whatever its parts are."""
    named = [f"{word} {value!r}" for word, value in (("salt", salt), ("adapter", adapter)) if value is not None]
    return ", ".join(named) or "no salt"


def printable(text: str) -> str:
    """One line that steers no terminal and no reader's eye, whatever a prompt holds: ⏎ ends lines, · is the rest."""
    return "".join(char if char.isprintable() else "⏎" if char == "\n" else "·" for char in text)


def bytes_(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def duration(value: float) -> str:
    """Whole seconds, minutes or hours, as long spans are read."""
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{value:.0f} s"

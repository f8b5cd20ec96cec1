"""A plan for a person: models side by side, what the figures mean, and a profile turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.markup import escape
from rich.table import Table

from radix.plan import Plan, Profile, Turn
from radix.sizes import counted, format_bytes

_LABEL_WIDTH = 34
_COLUMN_WIDTH = 22
_MOST_ROWS = 64


def plan_tables(plans: list[Plan], lengths: list[int], width: int) -> Iterator[Table]:
    """Yield tables with a column a plan, as many columns in each as `width` characters show."""
    rows = _rows(plans, lengths)
    for some in _chunks(plans, max(1, (width - _LABEL_WIDTH) // _COLUMN_WIDTH)):
        table = Table()
        table.add_column("")
        for plan in some:
            table.add_column(_title(plan), justify="right", overflow="fold")
        for label, cell in rows:
            table.add_row(label, *(cell(plan) for plan in some))
        yield table


def _rows(plans: list[Plan], lengths: list[int]) -> list[tuple[str, Callable[[Plan], str]]]:
    windowed = any(plan.shape.window_layers for plan in plans)
    rows: list[tuple[str, Callable[[Plan], str]]] = [
        ("attention", lambda plan: plan.shape.attention),
        ("layers", lambda plan: str(plan.shape.layers)),
        ("query heads", lambda plan: str(plan.shape.query_heads)),
        ("kept a token and layer", lambda plan: plan.shape.kv),
    ]
    if windowed:
        rows.append(("layers with a window", _window))
    rows.append(("[bold]bytes a token[/bold]", lambda plan: f"[bold]{format_bytes(plan.bytes_per_token)}[/bold]"))
    if windowed:
        rows.append(("  windows dropped, once full", _beyond_windows))
    rows += [
        ("  counting query heads (wrong)", _by_query_heads),
        (f"tokens in {format_bytes(plans[0].memory)}", lambda plan: f"{plan.tokens:,}"),
    ]
    for length in lengths:
        rows.append((f"sessions of {length:,}", lambda plan, length=length: f"{plan.sessions(length):,}"))  # type: ignore[misc]
        if windowed:
            rows.append(("  windows dropped", lambda plan, length=length: _dropped(plan, length)))  # type: ignore[misc]
    return rows


def notes(plans: list[Plan], lengths: list[int]) -> Iterator[str]:
    """Yield what a reader of the tables should know, only as far as it concerns these plans."""
    for plan in _one_a_model(plans):
        shape = plan.shape
        name = escape(shape.name)
        ours, wrong = format_bytes(plan.bytes_per_token), format_bytes(plan.query_heads_bytes)
        if shape.attention in {"GQA", "MQA"}:
            yield (
                f"{name}: only key-value heads are stored, and its {shape.query_heads} query heads read "
                f"{shape.kv_heads} of them. Formulas that count query heads say {wrong} a token; it takes {ours}."
            )
        if shape.attention == "MLA":
            rest = (
                f" An engine that stores every head's keys and values instead keeps {wrong}."
                if shape.expanded_values
                else ""
            )
            yield (
                f"{name}: MLA keeps one compressed vector a token and layer ({shape.kv}) for all "
                f"{shape.query_heads} heads, keys and values in one, so there is no factor 2: {ours}.{rest}"
            )
        if shape.window_layers:
            yield (
                f"{name}: {shape.window_layers} of {shape.layers} layers read only the last {shape.widest_window:,} "
                "tokens. The prefix store keeps every token in every layer, so that a session can go on from any "
                "prefix. An engine that drops what left the window holds more sessions, which can go on from their "
                "ends only."
            )
        for remark in shape.remarks:
            yield f"{name}: {remark}."
        if shape.context is not None and max(lengths) > shape.context:
            yield f"{name}: its config ends at {shape.context:,} tokens."
    narrow = sorted({plan.dtype for plan in plans if set(plan.dtype.split("/")) & {"fp8_e4m3", "int8", "int4"}})
    if narrow:
        yield f"{', '.join(narrow)}: scales are counted; layers kept at a higher precision may add up to 5 %."
    yield "Sessions are counted as if they shared nothing; a shared prompt is stored once and makes room for more."


def profile_heading(plans: list[Plan], profile: Profile, sessions: int) -> str:
    """Return what the profile's tables show."""
    shown = len(_turns_shown(plans, profile, sessions))
    some = f" ({shown} of {profile.turns + 1} turns; --json has them all)" if shown <= profile.turns else ""
    so_many = counted(sessions, "session")
    return f"{so_many}, {profile.start:,} tokens at the start and {profile.per_turn:,} more a turn{some}"


def profile_tables(plans: list[Plan], profile: Profile, sessions: int, width: int) -> Iterator[Table]:
    """Yield tables with a row a turn; a long profile is shown in even steps and around the turn at which it is full."""
    shown = _turns_shown(plans, profile, sessions)
    for some in _chunks(plans, max(1, (width - 24) // 28)):
        table = Table()
        table.add_column("after turn", justify="right")
        table.add_column("tokens", justify="right")
        for plan in some:
            table.add_column(_title(plan) + ("" if sessions == 1 else "\none session / all"), justify="right")
        columns = [plan.turns(profile, sessions) for plan in some]
        for turn in shown:
            table.add_row(
                str(turn), f"{profile.tokens(turn):,}", *(_size(column[turn], sessions) for column in columns)
            )
        yield table


def profile_summary(plans: list[Plan], profile: Profile, sessions: int) -> Iterator[str]:
    """Yield for each plan the turn at which so many sessions no longer fit."""
    so_many = counted(sessions, "session")
    for plan in plans:
        full = plan.full_at_turn(profile, sessions)
        name = f"{escape(plan.shape.name)} ({plan.dtype})"
        memory = format_bytes(plan.memory)
        needed = format_bytes(sessions * plan.session_bytes(profile.tokens(full)))
        beyond = " (beyond the profile)" if full > profile.turns else ""
        if full == 0:
            yield f"{name}: {so_many} do not fit {memory} from the start: {needed} would be needed."
        else:
            yield (
                f"{name}: {so_many} no longer fit {memory} after turn {full:,}{beyond}: "
                f"at {profile.tokens(full):,} tokens each they need {needed}."
            )


def _turns_shown(plans: list[Plan], profile: Profile, sessions: int) -> list[int]:
    if profile.turns < _MOST_ROWS:
        return list(range(profile.turns + 1))
    step = -(-profile.turns // (_MOST_ROWS - 4))
    shown = {*range(0, profile.turns + 1, step), profile.turns}
    for plan in plans:
        full = plan.full_at_turn(profile, sessions)
        shown |= {turn for turn in (full - 1, full) if 0 <= turn <= profile.turns}
    return sorted(shown)


def _size(turn: Turn, sessions: int) -> str:
    text = format_bytes(turn.bytes)
    if sessions > 1:
        text += f" / {format_bytes(turn.all_sessions_bytes)}"
    return text if turn.fits else f"[red]{text} ✗[/red]"


def _title(plan: Plan) -> str:
    return f"{escape(plan.shape.name)}\n{plan.dtype}"


def _window(plan: Plan) -> str:
    shape = plan.shape
    return f"{shape.window_layers} of {shape.widest_window:,}" if shape.window_layers else "-"


def _beyond_windows(plan: Plan) -> str:
    return format_bytes(plan.beyond_windows_bytes) if plan.shape.window_layers else "-"


def _by_query_heads(plan: Plan) -> str:
    if plan.query_heads_bytes == plan.bytes_per_token:
        return "the same"
    return f"{format_bytes(plan.query_heads_bytes)} ({plan.query_heads_bytes / plan.bytes_per_token:.3g}x)"


def _dropped(plan: Plan, length: int) -> str:
    return f"{plan.sessions_within_windows(length):,}" if plan.shape.window_layers else "-"


def _one_a_model(plans: list[Plan]) -> list[Plan]:
    return list({id(plan.shape): plan for plan in reversed(plans)}.values())[::-1]


def _chunks(plans: list[Plan], size: int) -> Iterator[list[Plan]]:
    for first in range(0, len(plans), size):
        yield plans[first : first + size]

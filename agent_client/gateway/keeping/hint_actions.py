"""`kv_hints`: what a router or an agent wants done with the KV of its request, read out of the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError
from radixloop.tenants import MAX_PRIORITY

from ..bodies import Body
from ..failures import refused
from .lease_book import DEFAULT_PRIORITY

PROTOCOL = "0.1"
MAX_ACTIONS = 16
MAX_DIRECTIVES = 128

Status = Literal["applied", "deferred", "duplicate", "rejected", "unsupported"]


class KvHints(Body):
    """The envelope. Its actions are looked at one by one, so that a bad one spoils no other."""

    protocol_version: str
    message_id: str | None = None
    actions: list[dict[str, Any]] = Field(default_factory=list)


class Action(Body):
    """What all actions have."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any] = Field(default_factory=dict)


class SetPriority(Body):
    """`vllm.set_priority`: a claim on what the request leaves cached; a higher revision replaces it, null ends it."""

    target: str
    location: str
    claim_id: str = Field(min_length=1, max_length=512)
    revision: int = Field(ge=0)
    value: int | None
    ttl_seconds: float | None = Field(None, gt=0, le=604_800)


class Directive(Body):
    """One range of `kv.retain`, in tokens of the prompt, or the prompt with what was written after it."""

    start: int = Field(0, ge=0)
    end: int | None = Field(None, ge=1)
    covers_output: bool = False
    priority: int = Field(DEFAULT_PRIORITY, ge=0, le=MAX_PRIORITY)
    duration: float | None = Field(None, gt=0, le=604_800)


class Retain(Body):
    """`kv.retain`."""

    scope: str | None = None
    directives: list[Directive] = Field(min_length=1)


class Fetch(Body):
    """`kv.fetch`: token ids whose KV is to be there before they are asked for; without, those of the request itself."""

    token_ids: list[int] | None = Field(None, min_length=1)


Payload = SetPriority | Retain | Fetch
KINDS: dict[tuple[str, str], type[Payload]] = {
    ("vllm.set_priority", "1.0"): SetPriority,
    ("kv.retain", "1.0"): Retain,
    ("kv.fetch", "1.0"): Fetch,
}


@dataclass(frozen=True)
class Result:
    """What became of one action."""

    action_id: str
    action_type: str
    status: Status
    detail: str = ""

    def body(self) -> dict[str, str]:
        """As it stands in the answer."""
        told = {"action_id": self.action_id, "action_type": self.action_type, "status": self.status}
        return {**told, "detail": self.detail} if self.detail else told


def read_actions(hints: KvHints) -> list[tuple[Action, Payload] | Result]:
    """Each action with its payload, or why it is not carried out. Raises ApiError where there are too many."""
    if len(hints.actions) > MAX_ACTIONS:
        raise refused("kv_hints.actions", f"holds {len(hints.actions)}; at most {MAX_ACTIONS} in one request")
    payloads = [payload for action in hints.actions if isinstance(payload := action.get("payload"), dict)]
    directives = [payload["directives"] for payload in payloads if isinstance(payload.get("directives"), list)]
    total = sum(map(len, directives))
    if total > MAX_DIRECTIVES:
        raise refused("kv_hints.actions", f"hold {total} directives; at most {MAX_DIRECTIVES} in one request")
    return [_read(rank, action, hints.protocol_version) for rank, action in enumerate(hints.actions)]


def _read(rank: int, given: dict[str, Any], protocol: str) -> tuple[Action, Payload] | Result:
    name, kind = str(given.get("action_id") or rank)[:512], str(given.get("action_type"))[:128]
    try:
        action = Action.model_validate(given)
    except ValidationError as error:
        return Result(name, kind, "rejected", _first(error))
    if protocol != PROTOCOL:
        return Result(name, kind, "unsupported", f"protocol_version {PROTOCOL} is spoken here")
    payload_type = KINDS.get((action.action_type, action.action_version))
    if payload_type is None:
        known = ", ".join(f"{kind} {version}" for kind, version in KINDS)
        return Result(name, kind, "unsupported", f"known are {known}")
    try:
        return action, payload_type.model_validate(action.payload)
    except ValidationError as error:
        return Result(name, kind, "rejected", _first(error))


def _first(error: ValidationError) -> str:
    told = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, told['loc']))}: {told['msg']}"

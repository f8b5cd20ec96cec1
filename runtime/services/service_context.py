"""What the gRPC services share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from runtime.config import ServeConfig
from runtime.engine import Engine
from runtime.grammar.desk import GrammarDesk
from runtime.models.loaded_model import LoadedModel, ModelInfo
from runtime.prompting.prompts import PromptEncoder
from runtime.publishing.kv_events import KvEventHub
from runtime.retention.branches import Branches
from runtime.retention.lease_desk import LeaseDesk
from runtime.retention.sessions import SessionTable
from runtime.retention.tool_holds import ToolHolds
from runtime.scheduling.prefill_pace import PrefillPace
from runtime.services.wakeups import WakeUps


@dataclass(frozen=True)
class ServiceContext:
    """One runtime as its services see it.

    Attributes:
        loaded: the model; its info's context_length is the one that requests are held to.
        num_blocks: size of the KV pool.
        incarnation: new at every start.
        wakeups: of the streams' readers, flushed after every step.
        events: the last KV events; None where none are recorded.
        started: monotonic clock, seconds.
    """

    engine: Engine
    loaded: LoadedModel
    encoder: PromptEncoder
    grammars: GrammarDesk
    sessions: SessionTable
    leases: LeaseDesk
    holds: ToolHolds
    branches: Branches
    pace: PrefillPace
    config: ServeConfig
    num_blocks: int
    runtime_id: str
    incarnation: str
    wakeups: WakeUps
    events: KvEventHub | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def info(self) -> ModelInfo:
        return self.loaded.info

"""What the gRPC services share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from runtime.config import ServeConfig
from runtime.engine import Engine
from runtime.loaded_model import ModelInfo
from runtime.prompts import PromptEncoder
from runtime.sessions import SessionTable


@dataclass(frozen=True)
class ServiceContext:
    """One runtime as its services see it.

    Attributes:
        info: the model; its context_length is the one that requests are held to.
        num_blocks: size of the KV pool.
        incarnation: new at every start.
        started: monotonic clock, seconds.
    """

    engine: Engine
    info: ModelInfo
    encoder: PromptEncoder
    sessions: SessionTable
    config: ServeConfig
    num_blocks: int
    runtime_id: str
    incarnation: str
    started: float = field(default_factory=time.monotonic)

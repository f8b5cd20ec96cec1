"""A model's forward pass over a step, as the runner calls it, and the way that works for every model."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch

from runtime.attention.hook import LayerCall, attending
from runtime.attention.interface import AttentionOptions
from runtime.execution.batch import StepPlan


class Forward(Protocol):
    """Logits of packed rows of a step, `[len(rows), vocab]` in the model's dtype.

    `attend` is called once a layer with the queries, keys and values of all of the step's tokens. rows: int64.
    """

    name: str

    def __call__(self, plan: StepPlan, attend: LayerCall, rows: torch.Tensor) -> torch.Tensor: ...

    def with_options(self, options: tuple[AttentionOptions, ...]) -> Forward:
        """The same forward for layers that attend in these ways, in layer order."""
        ...


class ModelForward:
    """transformers' own forward, whose attention layers reach `attend` through the hook."""

    name = "model"

    def __init__(self, network: Any) -> None:
        self._network = network
        self._keeps_rows = "logits_to_keep" in inspect.signature(network.forward).parameters

    def with_options(self, options: tuple[AttentionOptions, ...]) -> ModelForward:
        """Itself: its layers say in each pass how they attend."""
        return self

    def __call__(self, plan: StepPlan, attend: LayerCall, rows: torch.Tensor) -> torch.Tensor:
        inputs = {"input_ids": plan.input_ids, "position_ids": plan.position_ids, "use_cache": False}
        with attending(attend):
            if self._keeps_rows:
                kept: torch.Tensor = self._network(**inputs, logits_to_keep=rows).logits[0]
                return kept
            logits: torch.Tensor = self._network(**inputs).logits[0]
            return logits[rows]

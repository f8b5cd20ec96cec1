"""Transformers' own forward, without our attention: what every other path is held to."""

from __future__ import annotations

import numpy as np
import torch

from runtime.attention.hook import plain_attention
from runtime.models.loaded_model import LoadedModel


def ordinary(loaded: LoadedModel, tokens: np.ndarray) -> torch.Tensor:
    """float32 [T, vocab] logits of int [T] tokens, attended eagerly and without a cache."""
    with torch.inference_mode(), plain_attention(loaded.model):
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        logits: torch.Tensor = loaded.model(input_ids=ids, use_cache=False).logits[0].float()
        return logits

"""Which layers cannot bear a precision: measured at load, on a short text.

The text runs through the model once for every layer's keys and once for every layer's values, with these alone as the
pool would give them back. How far the next tokens' probabilities move from those of the exact pass (Kullback-Leibler
divergence) is what keeping that half of that layer costs. Several variants are rows of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from radix.kv_bytes import HALVES, Half, head_bytes
from runtime.attention.interface import AttentionOptions
from runtime.attention.reference import attend_row
from runtime.execution.batch import BatchItem, Row, StepPlan
from runtime.kv.packing import Packing
from runtime.kv.precision import KVFormat, LayerShape
from runtime.kv.rotation import rotate
from runtime.models.forward import Forward

# Prose, code, mathematics and a tool's answer, since layers differ in what they mind.
SAMPLE = """The ferry left the harbour at dawn, an hour late, because the captain would not sail before the fog lifted.
Nobody on board complained; the letters in the hold had waited for three weeks already.

def median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

The sum of the first n odd numbers is n^2: 1 + 3 + 5 + 7 = 16 = 4^2. If it holds for n, adding 2n + 1 gives (n + 1)^2.
{"status": "ok", "booking": {"id": "KX41-77", "seats": [12, 14], "price": 219.50, "currency": "EUR"}, "errors": []}
"""
MAX_TOKENS = 96
# Tokens whose predictions are compared, the last of the text.
COMPARED = 72
# Variants that share a forward pass.
BATCH = 8
# Raised layers may add so much to a token's bytes, or as much as keeps what is packed within this share of fp32's.
MOST_BYTES = 1.05
MOST_OF_FP32 = {"int4": 0.16, "int8": 0.28, "fp8_e4m3": 0.28}
# A half of a layer is raised when it costs this many times the median, and at least this many nats a token; where
# raising adds no byte, when it costs more than the median.
MARGIN, NEGLIGIBLE = 1.5, 1e-4

Place = tuple[int, Half]


class Variants:
    """The layer call of a measuring pass: every row attends to itself alone, outside any pool.

    places: for each row, which half of which layer is kept as the format keeps it; None for an exact row.
    """

    def __init__(self, format_: KVFormat, places: Sequence[Place | None], size: int) -> None:
        self._format = format_
        self._places = places
        self._row = Row(0, size, 0, size, np.empty(0, np.int32))

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        out = query.new_empty(*query.shape[:2], value.shape[2])
        for index, place in enumerate(self._places):
            where = slice(index * self._row.q_len, (index + 1) * self._row.q_len)
            halves = {"keys": key[where].float(), "values": value[where].float()}
            if place is not None and place[0] == layer:
                half = place[1]
                packing = self._format.packing(layer, half)
                if packing is not None:
                    halves[half] = _as_kept(halves[half], packing)
            out[where] = attend_row(query[where].float(), halves["keys"], halves["values"], self._row, options)[0].to(
                query.dtype
            )
        return out


def measure(
    forward: Forward, format_: KVFormat, layers: int, tokens: np.ndarray, device: torch.device
) -> dict[Place, float]:
    """Nats a token that keeping each packed half of each layer costs, over these int32 tokens (one prompt)."""
    size = len(tokens)
    kept = min(COMPARED, size)
    places = [(layer, half) for half in HALVES for layer in range(layers) if format_.packing(layer, half) is not None]

    def log_probs(rows: Sequence[Place | None]) -> torch.Tensor:
        items = [BatchItem(tokens, 0, np.zeros(1, np.int32), kept) for _ in rows]
        plan = StepPlan(items, size, 1, device)
        with torch.inference_mode():
            logits = forward(plan, Variants(format_, rows, size), plan.logit_rows).float()
        return torch.log_softmax(logits, -1).view(len(rows), kept, -1)

    exact = log_probs([None])[0]
    found: dict[Place, float] = {}
    for at in range(0, len(places), BATCH):
        some = places[at : at + BATCH]
        for place, changed in zip(some, log_probs(some), strict=True):
            found[place] = float((exact.exp() * (exact - changed)).sum(-1).mean())
    return found


def sample_tokens(tokenizer: Any, vocab_size: int) -> np.ndarray:
    """Int32 ids of SAMPLE, or random ones where there is no tokenizer."""
    if tokenizer is None:
        return np.random.default_rng(11).integers(0, vocab_size, MAX_TOKENS // 4).astype(np.int32)
    return np.array(tokenizer.encode(SAMPLE, add_special_tokens=False)[-MAX_TOKENS:], dtype=np.int32)


def choose_raised(costs: dict[Place, float], format_: KVFormat, shapes: Sequence[LayerShape]) -> frozenset[Place]:
    """The halves of layers that are worth a higher precision, by what they cost for each byte that raising adds."""
    plain = format_.bytes_per_token(shapes)
    added = {place: format_.raising(place).bytes_per_token(shapes) - plain for place in costs}
    room = _most_bytes(format_, shapes) - plain
    raised: set[Place] = set()
    medians = {
        half: float(np.median([cost for place, cost in costs.items() if place[1] == half]))
        for half in {place[1] for place in costs}
    }
    for place in sorted(costs, key=lambda place: (-costs[place] / max(added[place], 1), place)):
        median = medians[place[1]]
        limit = max(MARGIN * median, NEGLIGIBLE) if added[place] else median
        if costs[place] > limit and added[place] <= room:
            raised.add(place)
            room -= added[place]
    return frozenset(raised)


def _most_bytes(format_: KVFormat, shapes: Sequence[LayerShape]) -> int:
    """Bytes that a token may take with raised layers."""
    shared = 0.0
    for half, name in zip(HALVES, (format_.keys, format_.values), strict=True):
        for shape in shapes:
            dim = shape.dim(half)
            share = MOST_OF_FP32.get(name)
            shared += shape.kv_heads * (head_bytes(name, half, dim) if share is None else share * 4 * dim)
    return int(max(MOST_BYTES * format_.bytes_per_token(shapes), shared))


def _as_kept(numbers: torch.Tensor, packing: Packing) -> torch.Tensor:
    turned = rotate(numbers) if packing.rotates else numbers
    kept = packing.decode(packing.encode(turned.contiguous()), numbers.shape[-1])
    return rotate(kept) if packing.rotates else kept

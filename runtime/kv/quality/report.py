"""The whole measurement, as plain values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from radix.kv_bytes import PRECISIONS
from runtime.errors import InvalidRequest
from runtime.kv.quality.comparison import DECODE_STEPS, Lane, Score, compare, time_decoding
from runtime.kv.quality.recall import CALL_CONTEXT, CALL_TOKENS, DEPTHS, needles, tool_calls
from runtime.kv.quality.texts import Text, chats, texts
from runtime.kv.settings import KVSettings
from runtime.models.loaded_model import LoadedModel


@dataclass(frozen=True)
class QualityConfig:
    """settings: what to compare with an fp32 pool, by name. tokens: of all texts together, for each context.

    calls: tool calls of recorded loops to let the model write; needle_contexts: tokens around the needles.
    """

    settings: dict[str, KVSettings]
    kinds: list[str]
    contexts: list[int]
    tokens: int
    needle_contexts: list[int]
    calls: int
    seed: int
    loops: Path | None = None


def measure_quality(
    loaded: LoadedModel, config: QualityConfig, progress: Callable[[float, str], None] = lambda share, step: None
) -> dict[str, Any]:
    """Everything that `radix-runtime quality` reports. Raises InvalidRequest."""
    if loaded.tokenizer is None:
        raise InvalidRequest("model", loaded.info.name, "has no tokenizer, so it can read no text")
    if min(config.contexts) <= DECODE_STEPS:
        raise InvalidRequest("contexts", min(config.contexts), f"must be at least {DECODE_STEPS + 1} tokens")
    room = max([*config.contexts, *(length + _NEEDLE_ROOM for length in config.needle_contexts)])
    if config.calls:
        room = max(room, CALL_CONTEXT + CALL_TOKENS)
    limit = loaded.info.context_length
    if limit and room > limit:
        raise InvalidRequest("contexts", room, f"the model's context ends at {limit}; needles add {_NEEDLE_ROOM}")
    found = texts(config.kinds, config.loops)
    lanes = [Lane.of("fp32", loaded.repack(KVSettings("fp32")), room)]
    # What all are compared with is there already.
    lanes += [Lane.of(name, loaded.repack(kv), room) for name, kv in config.settings.items() if name != "fp32"]
    _compare(lanes, loaded, found, config, progress)
    hits = _needles(lanes, loaded, found[0], config, progress)
    calls = {}
    if config.calls:
        progress(0.9, "tool calls")
        calls = tool_calls(lanes, loaded.tokenizer, list(chats(config.loops)), config.calls)
    exact = lanes[0]
    return {
        "model": loaded.info.name,
        "fingerprint": exact.loaded.info.fingerprint,
        "dtype": loaded.info.dtype,
        "threads": torch.get_num_threads(),
        "seed": config.seed,
        "contexts": config.contexts,
        "texts": [{"kind": text.kind, "source": text.source, "sha256": text.digest} for text in found],
        "loops": None if config.loops is None else config.loops.name,
        "dtypes": [
            {
                "kv_dtype": lane.name,
                **_total(lane).report(_total(exact)),
                "bytes_per_token": lane.loaded.info.kv_bytes_per_token,
                "share_of_fp32": lane.loaded.info.kv_bytes_per_token / exact.loaded.info.kv_bytes_per_token,
                "raised": [f"{half}:{layer}" for layer, half in sorted(lane.loaded.kv_format.raised)],
                "attention": lane.loaded.info.attention_backend,
                "decode_ms": _ms(lane.decode_s[config.contexts[0]]),
                "decode_ms_by_context": {length: _ms(seconds) for length, seconds in lane.decode_s.items()},
                "prefill_tokens_per_s": lane.prefill_tokens / lane.prefill_s if lane.prefill_s else None,
                "parts": [
                    {"text": kind, "context": length, **score.report(exact.scores[kind, length])}
                    for (kind, length), score in lane.scores.items()
                ],
                "needles": hits.get(lane.name),
                "tool_calls": asdict(calls[lane.name]) if lane.name in calls else None,
            }
            for lane in lanes
        ],
    }


# Tokens that the needles and a question add to a context.
_NEEDLE_ROOM = 512


def _compare(
    lanes: Sequence[Lane],
    loaded: LoadedModel,
    found: Sequence[Text],
    config: QualityConfig,
    progress: Callable[[float, str], None],
) -> None:
    """Each context takes equally many tokens of every text, and at least one window."""
    cases = [(text, length) for length in config.contexts for text in found]
    for index, (text, length) in enumerate(cases):
        count = max(1, -(-config.tokens // (length * len(found))))
        for number, window in enumerate(text.windows(loaded.tokenizer, length, count)):
            progress(0.8 * (index + number / count) / len(cases), f"{text.kind}, {length} tokens")
            compare(lanes, text.kind, window)
        if text is found[0]:
            time_decoding(lanes, window)


def _needles(
    lanes: Sequence[Lane],
    loaded: LoadedModel,
    text: Text,
    config: QualityConfig,
    progress: Callable[[float, str], None],
) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    # The filler is no text that is scored.
    before = {lane.name: dict(lane.scores) for lane in lanes}
    for length in config.needle_contexts:
        progress(0.8, f"needles in {length} tokens")
        [filler] = text.windows(loaded.tokenizer, length, 1)
        for name, hits in needles(lanes, loaded.tokenizer, filler, config.seed).items():
            total = totals.setdefault(name, {"asked": 0, "found": 0, "by_depth": dict.fromkeys(map(str, DEPTHS), 0)})
            total["asked"] += len(hits)
            total["found"] += sum(hits)
            for depth, hit in zip(DEPTHS, hits, strict=True):
                total["by_depth"][str(depth)] += hit
    for lane in lanes:
        lane.scores = before[lane.name]
    return totals


def _ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


def _total(lane: Lane) -> Score:
    total = Score()
    for score in lane.scores.values():
        total.add(score)
    return total


def named_settings(names: str, sensitive: str) -> dict[str, KVSettings]:
    """Settings of a list such as `int8,int4`, `all`, or `int8/int4` for keys and values apart.

    Raises InvalidRequest.
    """
    found = {}
    for name in [n for n in PRECISIONS if n != "fp32"] if names == "all" else names.split(","):
        keys, slash, values = name.strip().partition("/")
        one = KVSettings("auto", keys, values if slash else keys, sensitive)
        one.check()
        found[name.strip()] = one
    return found

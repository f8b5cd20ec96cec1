"""The engine over packed pools: hits, chunks, forks, copies, drafts and evictions change no answer.

Right answers are computed cold and alone, written by torch, in deterministic mode also read by torch. What the engine
then writes through the native kernel must agree with them: to the last bit in deterministic mode, else in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime.drafting.drafts import DraftSettings, DraftSource
from runtime.execution.batch import BatchItem
from runtime.execution.model_runner import ModelRunner
from runtime.kv import writing
from runtime.kv.settings import KVSettings
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.native.kv_writer import NativeWriter
from tests.runtime import bit_equality, token_equality
from tests.runtime.bit_equality import BitWork, bit_work
from tests.runtime.token_equality import BLOCK, Workload, chunks_of_one, workload

SETTINGS = {
    "fp8_e4m3": KVSettings("fp8_e4m3", sensitive="keys:1"),
    "int8": KVSettings("int8", sensitive="none"),
    "int4": KVSettings("int4", sensitive="0"),
    "int8/int4": KVSettings(keys="int8", values="int4", sensitive="none"),
    "int4/fp16": KVSettings(keys="int4", values="fp16", sensitive="values:0"),
}
FORCED = {"drafts": DraftSettings(frozenset(DraftSource), longest=8, adaptive=False)}
# A number that lies on the border between two codes moves a logit by less. The median distance of the two best is .7.
TIE = 0.02


@contextmanager
def written_by_torch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "native_obstacle", lambda pool: "not here")
        yield


@pytest.fixture(
    scope="module", params=["int4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fp8_e4m3", "int8/int4"))]
)
def bits(request: pytest.FixtureRequest, tiny_model: Path) -> BitWork:
    loaded = load_model(str(tiny_model), dtype="fp32", device="cpu", deterministic=True)
    packed = loaded.repack(SETTINGS[request.param])
    with written_by_torch():
        return bit_work(packed, [300, 50, 77, 61, 45], 6, [1, 7, 8, 15, 16, 17, 31, 33])


@pytest.mark.parametrize("case", bit_equality.CASES)
def test_the_same_bits(bits: BitWork, case: Callable[[BitWork], None]) -> None:
    case(bits)


def answers(loaded: LoadedModel, work: Workload) -> Workload:
    """The workload with what each prompt answers cold and alone, read by the plain reference."""
    expected, gaps = [], []
    plain = replace(loaded, info=replace(loaded.info, attention_backend="reference"))
    runner = ModelRunner(plain, 64, BLOCK)
    for prompt in work.prompts:
        tokens, near = list(prompt), []
        start = 0
        while len(tokens) < len(prompt) + work.n:
            table = np.arange(-(-len(tokens) // BLOCK), dtype=np.int32)
            [logits] = runner.forward([BatchItem(np.array(tokens[start:], np.int32), start, table)])
            best = logits.topk(2).values
            near.append(float(best[0] - best[1]))
            start = len(tokens)
            tokens.append(int(logits.argmax()))
        expected.append(tokens[len(prompt) :])
        gaps.append(near)
    return replace(work, loaded=loaded, expected=expected, gaps=gaps, tie=TIE)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name == "fp8_e4m3" else pytest.mark.slow) for name in SETTINGS],
)
def work(request: pytest.FixtureRequest, tiny: LoadedModel) -> Workload:
    packed = tiny.repack(SETTINGS[request.param])
    with written_by_torch():
        found = answers(packed, workload(tiny, count=8, n=24))
    assert isinstance(ModelRunner(packed, 1, BLOCK).writer, NativeWriter)
    assert packed.info.attention_backend == "native"
    return found


@pytest.mark.parametrize("case", token_equality.CASES)
def test_the_same_tokens(work: Workload, case: Callable[[Workload], None]) -> None:
    case(work)


# With one token a step there is no room for a draft.
@pytest.mark.parametrize("case", [case for case in token_equality.CASES if case is not chunks_of_one])
@pytest.mark.parametrize("work", ["int4", pytest.param("int8/int4", marks=pytest.mark.slow)], indirect=True)
def test_the_same_tokens_with_drafts(work: Workload, case: Callable[[Workload], None]) -> None:
    case(replace(work, config=FORCED))

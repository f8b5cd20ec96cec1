"""Greedy tokens equal transformers' own, whatever the cache did: tiny weights always, real weights with `-m models`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.models.loaded_model import LoadedModel
from tests.runtime.token_equality import CASES, Workload, hit_against_miss, workload

Case = Callable[[Workload], None]


@pytest.fixture(scope="session")
def tiny_work(tiny: LoadedModel) -> Workload:
    return workload(tiny, count=12, n=24)


@pytest.fixture(scope="session")
def smollm2_work(smollm2: LoadedModel) -> Workload:
    return workload(smollm2, count=8, n=24)


@pytest.fixture(scope="session")
def smollm2_full_work(smollm2: LoadedModel) -> Workload:
    return workload(smollm2, count=30, n=64)


@pytest.fixture(scope="session")
def gemma3_work(gemma3: LoadedModel) -> Workload:
    """The shared beginning is longer than the model's sliding window of 512 tokens."""
    work = workload(gemma3, count=4, n=16, head_repeats=17, hit_lengths=[1, 15, 16, 17, 31, 511, 512, 513, 560])
    assert min(map(len, work.prompts)) > 512 + 64
    return work


@pytest.mark.parametrize("case", CASES)
def test_tiny(tiny_work: Workload, case: Case) -> None:
    case(tiny_work)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_smollm2(smollm2_work: Workload, case: Case) -> None:
    case(smollm2_work)


@pytest.mark.models
@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_smollm2_full(smollm2_full_work: Workload, case: Case) -> None:
    case(smollm2_full_work)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_gemma3(gemma3_work: Workload, case: Case) -> None:
    case(gemma3_work)


def test_hit_against_miss_tiny(tiny_work: Workload) -> None:
    assert hit_against_miss(tiny_work) < 1e-3


@pytest.mark.models
@pytest.mark.slow
def test_hit_against_miss_smollm2(smollm2_work: Workload, record_property: Callable[[str, object], None]) -> None:
    worst = hit_against_miss(smollm2_work)
    record_property("largest_logit_difference", worst)
    print(f"largest logit difference of hit against miss: {worst:.2e}")
    assert worst < 1e-3

"""Documents of real-world schemas, at temperature 1 and eight at a time: every one validates."""

from __future__ import annotations

import pytest

from runtime.models.loaded_model import LoadedModel
from tests.runtime.grammar.schema_run import run
from tests.runtime.grammar.schemas import SCHEMAS
from tests.runtime.services_harness import Server, serving


@pytest.mark.slow
def test_two_documents_of_each_schema_by_a_model_of_random_weights(server: Server) -> None:
    outcome = run(server, each=2)
    assert not outcome.faults
    assert outcome.valid == 2 * len(SCHEMAS) == 50


@pytest.mark.nightly
@pytest.mark.models
@pytest.mark.timeout(1800)
def test_a_thousand_documents_by_smollm2(smollm2: LoadedModel) -> None:
    with serving(smollm2) as server:
        outcome = run(server, each=40)
    print(f"{outcome.valid} documents, {outcome.tokens} tokens, {outcome.seconds:.0f} s")
    assert not outcome.faults
    assert outcome.valid == 40 * len(SCHEMAS) == 1000

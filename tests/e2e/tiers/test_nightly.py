"""The long checks of the tiers, shorter than their commands make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.tiers import kills
from tests.e2e.tiers.soak import soak

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.mark.parametrize("returns", [True, False], ids=["the disk comes back", "the disk is gone"])
def test_a_soak_loses_no_block_and_changes_no_answer(returns: bool, tmp_path: Path) -> None:
    figures = soak(tmp_path, "tiny", 4, seed=3, returns=returns)
    assert figures.wrong == []
    assert figures.checks > 60


def test_killed_at_any_moment_it_starts_and_answers_right(tmp_path: Path) -> None:
    told = kills.run(tmp_path, 200, seed=1)
    assert told["wrong"] == []
    assert sum(told["kills"].values()) == 200

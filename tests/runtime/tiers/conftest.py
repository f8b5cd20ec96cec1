"""What all tests of tiers have in common."""

from __future__ import annotations

import pytest

from runtime.tiers.pace import PrefillCost


@pytest.fixture(autouse=True)
def always_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing is never measured, and so never known to be cheaper: a tiny model's would be at times."""
    monkeypatch.setattr(PrefillCost, "record", lambda *step: None)

"""The share of turns that reuse all, over live chats with a real model."""

from __future__ import annotations

import pytest

from runtime.models.loaded_model import LoadedModel
from tests.runtime.stable_histories import measure, whole

pytestmark = [pytest.mark.models, pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_every_turn_of_forty_sessions_reuses_all_and_without_the_memory_many_do_not(smollm2: LoadedModel) -> None:
    told = measure(smollm2, sessions=40, turns=3, history_memory=2**27, max_tokens=112)
    assert len(told) == 80
    # Long replies, or the figure would say little.
    assert sum(turn.reply_tokens for turn in told) > 80 * 90
    assert whole(told) == 80
    without = measure(smollm2, sessions=40, turns=3, history_memory=0, max_tokens=112)
    assert whole(without) < 72

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.replay.percentiles import percentile


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    assert (
        percentile(values, share) == np.float64(np.percentile(values, share * 100)).item()
        or abs((percentile(values, share) or 0.0) - float(np.percentile(values, share * 100))) <= 1e-6
    )


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 0.5) is None

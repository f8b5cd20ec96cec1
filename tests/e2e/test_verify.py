"""A deterministic runtime that verifies its hits, asked by the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from agent_client import RadixClient
from tests.e2e.conftest import RunningServer, ids
from tests.timing import eventually

pytestmark = pytest.mark.e2e


def test_verified_hits_have_the_same_bits(start_server: Callable[..., RunningServer]) -> None:
    server = start_server("--deterministic", "--verify-hits", "1")
    prompt = ids(100)

    def verify() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runtime", "verify", "--metrics-url", str(server.metrics_url)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    with RadixClient(server.target) as client:
        client.wait_ready(30)
        cold = client.generate(prompt, max_tokens=8, logprobs=True)
        warm = client.generate(prompt, max_tokens=8, logprobs=True)
    assert warm.usage.cached_tokens == 99
    assert [(t.token_id, t.logprob) for t in warm.logprobs] == [(t.token_id, t.logprob) for t in cold.logprobs]
    assert eventually(lambda: verify().stdout.startswith("1 hits verified: 1 with the same bits"))
    assert verify().returncode == 0

"""`deploy/demo.py` with a tiny model: what it writes, and that nothing of it is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_client.traces import TraceWriter

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "loops.jsonl"
    with TraceWriter(path) as writer:
        for loop in range(3):
            messages: list[dict[str, Any]] = [{"role": "system", "content": "Look things up. " * 20}]
            for turn in range(3):
                messages.append({"role": "user", "content": f"loop {loop}, part {turn}?"})
                messages.append({"role": "assistant", "content": "found"})
            writer.write_messages(f"loop {loop}", messages)
    return path


class Demo:
    """The demo as a process of its own session, as a shell would start it."""

    def __init__(self, out: Path, *flags: object) -> None:
        self.out = out
        command = [sys.executable, "deploy/demo.py", "--out", str(out), *map(str, flags)]
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "COLUMNS": "80"},
            start_new_session=True,
        )
        self.children: list[psutil.Process] = []

    def wait(self, timeout_s: float = 120) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output

    def wait_until_replaying(self) -> None:
        """Until the runtime serves and a replay runs beside it."""
        demo = psutil.Process(self.process.pid)
        deadline = time.monotonic() + 120
        while True:
            self.children = demo.children(recursive=True)
            if any("replay" in child.cmdline() for child in self.children):
                break
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.05)

    def assert_nothing_left(self) -> None:
        gone, alive = psutil.wait_procs(self.children, timeout=30)
        assert not alive
        assert gone


def test_a_whole_demo(tiny_model: Path, trace: Path, tmp_path: Path) -> None:
    demo = Demo(tmp_path / "out", "--model", tiny_model, "--trace", trace, "--output-tokens", 4)
    demo.wait_until_replaying()
    status, output = demo.wait()
    assert status == 0, output
    demo.assert_nothing_left()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (run,) = report["runs"]
    assert run["errors"] == 0
    assert run["calls"] == 9
    assert run["cached_tokens"] > 0
    baseline = json.loads((tmp_path / "out" / "baseline.json").read_text())
    assert [each["name"] for each in baseline["runs"]] == ["no_cache", "cached"]
    assert f"{run['hit_rate']:.1%} of {run['input_tokens']:,} prompt tokens were not computed again" in output
    assert "salt=replay-" in output
    # The path of the temporary folder may be longer than a line; nothing else is.
    assert max(len(line) for line in output.splitlines() if str(tmp_path) not in line) <= 80


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_running(
    tiny_model: Path, trace: Path, tmp_path: Path, how: signal.Signals
) -> None:
    demo = Demo(tmp_path / "out", "--model", tiny_model, "--trace", trace, "--output-tokens", 300)
    demo.wait_until_replaying()
    if how is signal.SIGINT:
        # Ctrl-C reaches everything in the foreground.
        os.killpg(demo.process.pid, how)
    else:
        demo.process.send_signal(how)
    status, output = demo.wait()
    assert status == 130, output
    assert "Interrupted" in output
    demo.assert_nothing_left()


def test_a_demo_that_cannot_start_shows_the_log(tmp_path: Path) -> None:
    status, output = Demo(tmp_path / "out", "--model", tmp_path / "none").wait()
    assert status == 1
    assert "before it served" in output
    assert "runtime.log" in output
    assert "none" in output.split("The end of")[1]


def test_a_demo_whose_replay_fails_fails(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"format": "radixloop-trace", "version": 1}\nno json\n')
    demo = Demo(tmp_path / "out", "--model", tiny_model, "--trace", broken)
    demo.wait_until_replaying()
    status, output = demo.wait()
    assert status == 1
    assert "broken.jsonl line 2" in output
    assert "The demo failed: agent-client replay ended with status 2" in output
    demo.assert_nothing_left()


def test_a_demo_without_reuse_fails(tiny_model: Path, tmp_path: Path) -> None:
    single = tmp_path / "single.jsonl"
    with TraceWriter(single) as writer:
        writer.write_messages("one", [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
    demo = Demo(tmp_path / "out", "--model", tiny_model, "--trace", single)
    demo.wait_until_replaying()
    status, output = demo.wait()
    assert status == 1
    assert "was reused" in output
    demo.assert_nothing_left()

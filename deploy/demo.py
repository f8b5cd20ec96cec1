"""`make demo`: a runtime, an embedded Valkey and recorded agent loops, and what was reused.

Runs the commands that a user would type, and ends with what their figures say. Leaves no process behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from agent_client import RadixClient, RadixloopError

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Path("agent_client/samples/repository.jsonl")
STOP_S = 20.0
LAST_WORDS_S = 2.0
# A first start may have to convert the weights on a slow disk.
START_S = 600.0
TAIL_LINES = 20
# The publisher writes twice a second.
PUBLISHED_S = 1.5


class DemoFailed(Exception):
    """A step failed; the message says which and why."""


@dataclass(frozen=True)
class Serving:
    """Where the runtime answers, as its ready file says."""

    target: str
    redis_url: str


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo. Returns the exit status: 0 only when every call succeeded and tokens were reused."""
    options = _options(arguments)
    console = Console()
    # SIGINT too: a shell starts its background jobs with it ignored.
    _stop_like_ctrl_c(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "runtime.log"
    began = time.monotonic()
    try:
        with _running_runtime(console, options.out, log, options.model) as serving:
            _steps(console, serving, options)
    except DemoFailed as error:
        console.print(Text(f"\nThe demo failed: {error}", style="bold red"))
        _print_tail(console, log)
        return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted: the runtime and its Valkey are stopped.")
        return 130
    console.print(f"[dim]Everything is stopped. It took {time.monotonic() - began:.0f} s.[/dim]")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="what to serve (default: %(default)s)")
    parser.add_argument("--trace", type=Path, default=SAMPLE, help="what to replay (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=16, help="tokens a call writes (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=3, help="sessions side by side (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for reports and log")
    parser.add_argument("--no-baseline", action="store_true", help="leave out the run without the cache")
    return parser.parse_args(arguments)


def _steps(console: Console, serving: Serving, options: argparse.Namespace) -> None:
    report_file, baseline_file = options.out / "report.json", options.out / "baseline.json"
    for file in (report_file, baseline_file):
        file.unlink(missing_ok=True)
    replay = ["agent-client", "replay", str(options.trace), "--target", serving.target]
    replay += ["--output-tokens", str(options.output_tokens)]

    _heading(console, "2", "Replay recorded agent loops; every call sends its whole history again")
    _command(console, [*replay, "--concurrency", str(options.concurrency), "--json", str(report_file)])
    report = _checked(report_file)

    _heading(console, "3", "Draw the cached prefixes from what Valkey was told")
    console.print("Each line is a run of tokens that is kept once, however many prompts hit it.")
    time.sleep(PUBLISHED_S)
    _command(console, ["radix", "inspect", "--redis", serving.redis_url, "--depth", "3", "--rows", "18"])

    baseline = None
    if not options.no_baseline:
        _heading(console, "4", "Replay one of the loops without the cache, then with it")
        _command(
            console,
            [*replay, "--sessions", "1", "--concurrency", "1", "--compare", "--json", str(baseline_file)],
            quiet=True,
        )
        baseline = _read(baseline_file)
    console.print()
    console.print(Panel(_conclusion(report, baseline), title="What this shows", title_align="left", padding=(0, 1)))
    console.print(f"[dim]Report: {report_file}. Log: {options.out / 'runtime.log'}.[/dim]")


@contextmanager
def _running_runtime(console: Console, folder: Path, log: Path, model: str) -> Iterator[Serving]:
    """A runtime with an embedded Valkey. Both are gone when the block is left, however it is left."""
    ready_file = folder / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = ["radix-runtime", "serve", "--model", model, "--port", "0", "--metrics-port", "0"]
    command += ["--redis", "embedded", "--ready-file", str(ready_file)]
    _heading(console, "1", "Start a runtime, with a Valkey of its own")
    console.print(Text(f"$ {shlex.join(command)}", style="cyan"))
    with log.open("wb") as output:
        # A session of its own: Ctrl-C stops the demo, and the demo stops the runtime.
        process = subprocess.Popen(
            _executable(command), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _wait_until_serving(console, process, ready_file, log)
    finally:
        _stop(process)


def _wait_until_serving(console: Console, process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> Serving:
    began = time.monotonic()
    with console.status("starting") as status:
        while not ready_file.exists():
            if process.poll() is not None:
                raise DemoFailed(f"the runtime ended with status {process.returncode} before it served")
            if time.monotonic() - began > START_S:
                raise DemoFailed(f"the runtime did not serve within {START_S:.0f} s")
            status.update(Text(f"{time.monotonic() - began:.0f} s  {_last_words(log)}"))
            time.sleep(0.2)
        ready = json.loads(ready_file.read_text(encoding="utf-8"))
        with RadixClient(ready["target"]) as client:
            try:
                client.wait_ready()
                model = client.model_info()
            except RadixloopError as error:
                raise DemoFailed(f"the runtime does not answer: {error}") from None
    console.print(
        f"Serving {model.model} on {model.device} at {ready['target']} after {time.monotonic() - began:.1f} s; "
        f"its KV pool holds {model.num_blocks * model.block_size:,} tokens."
    )
    return Serving(ready["target"], ready["redis_url"])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, by asking first. The runtime's Valkey watches it and ends with it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _command(console: Console, command: list[str], quiet: bool = False) -> None:
    """Runs a command as a user would.

    Raises DemoFailed unless it ends with 0, KeyboardInterrupt when it was interrupted.
    """
    console.print(Text(f"$ {shlex.join(command)}", style="cyan"))
    process = subprocess.Popen(_executable(command), cwd=ROOT, stdout=subprocess.DEVNULL if quiet else None)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # Ctrl-C reached the command too: it prints what it has, and may take a moment for that.
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
        raise
    finally:
        _stop(process)
    if status == 130:
        raise KeyboardInterrupt
    if status != 0:
        raise DemoFailed(f"{command[0]} {command[1]} ended with status {status}")


def _executable(command: list[str]) -> list[str]:
    """The command from the environment that runs this demo, whatever is on the PATH."""
    return [str(Path(sys.executable).with_name(command[0])), *command[1:]]


def _read(file: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report


def _checked(file: Path) -> dict[str, Any]:
    """The replay's report. Raises DemoFailed when a call failed or nothing was reused."""
    report = _read(file)
    run = report["runs"][0]
    if run["errors"]:
        raise DemoFailed(f"{run['errors']} calls failed: {'; '.join(run['error_messages'])}")
    if not run["cached_tokens"]:
        raise DemoFailed(f"none of {run['input_tokens']:,} prompt tokens was reused")
    return report


def _conclusion(report: dict[str, Any], baseline: dict[str, Any] | None) -> Text:
    run = report["runs"][0]
    text = Text()
    text.append(f"{run['hit_rate']:.1%}", style="bold green")
    text.append(f" of {run['input_tokens']:,} prompt tokens were not computed again")
    if run["ideal_cached_tokens"]:
        text.append(f": {run['share_of_ideal']:.1%} of what an endless cache could reuse")
    text.append(f".\n{run['computed_tokens']:,} tokens were computed, over {run['calls']} calls in {run['sessions']} ")
    text.append(f"sessions and branches, in {run['wall_s']:.0f} s.")
    if run["saved_prefill_s"] is not None:
        text.append(f" Saved: about {run['saved_prefill_s']:.0f} s of prefill.")
    if baseline is not None and baseline["ratios"] is not None:
        cold, warm = baseline["runs"]
        ratios = baseline["ratios"]
        text.append("\nOne session, measured both ways: ")
        text.append(f"{ratios['prefill_s']:.1f}x", style="bold green")
        text.append(f" less prefill ({cold['prefill_s']:.1f} s -> {warm['prefill_s']:.1f} s), first token after ")
        text.append(
            f"{warm['ttft_later_p50_s']:.2f} s instead of {cold['ttft_later_p50_s']:.2f} s (median, later turns)."
        )
    return text


def _heading(console: Console, number: str, words: str) -> None:
    console.print()
    console.print(Text(f"{number}. {words}", style="bold"))


def _print_tail(console: Console, log: Path) -> None:
    if not log.exists():
        return
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    console.print(f"The end of {log}:")
    for line in lines:
        console.print(Text(f"  {line}", style="dim"))


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""


def _stop_like_ctrl_c(*signals: signal.Signals) -> None:
    """A CI job that is cancelled or a terminal that is closed must stop the runtime too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, interrupt)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())

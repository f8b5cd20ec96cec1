"""The command line without a runtime: help, quickness, and what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rich.console import Console

from agent_client.replay.tables import print_report
from agent_client.words import bytes_, counted, duration, seconds

COMMANDS = ("replay", "bench", "generate", "chat", "stats", "nodes", "events", "top", "gateway")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, env={"COLUMNS": "80"}, check=False
    )


def test_help_names_every_command() -> None:
    done = run("-m", "agent_client", "--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_in_80_columns(command: str) -> None:
    done = run("-m", "agent_client", command, "--help")
    assert done.returncode == 0
    assert ("--runtime" if command == "gateway" else "--target") in done.stdout
    # A comparison names its servers.
    assert ("RADIXLOOP_TARGET" in done.stdout) == (command != "bench")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_loads_neither_grpc_nor_a_model() -> None:
    code = (
        "import sys; from agent_client.__main__ import main\n"
        "sys.argv = ['agent-client', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "loaded = {'grpc', 'google.protobuf', 'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_the_library_loads_nothing_but_grpc_and_protobuf() -> None:
    code = (
        "import sys, agent_client\n"
        "for name in agent_client.__all__: getattr(agent_client, name)\n"
        "loaded = {'torch', 'transformers', 'numpy', 'typer', 'rich', 'click'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_version() -> None:
    assert run("-m", "agent_client", "--version").stdout.startswith("agent-client 0.")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds(0.0123), "12.3 ms"),
        (seconds(0.5), "500 ms"),
        (seconds(1.5), "1.50 s"),
        (seconds(1234.5), "1,234 s"),
        (seconds(None), "–"),
        (bytes_(46080), "45 KiB"),
        (bytes_(3 * 2**30), "3.0 GiB"),
        (bytes_(2**41), "2,048.0 GiB"),
        (duration(5.2), "5 s"),
        (duration(65), "1 min 05 s"),
        (duration(3660), "1 h 01 min"),
        (counted(1, "call"), "1 call"),
        (counted(1200, "call"), "1,200 calls"),
    ],
)
def test_figures_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


def test_a_run_without_a_single_call_can_be_printed() -> None:
    from agent_client.replay.records import Run
    from agent_client.replay.summary import summarise

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    run = summarise(Run("cached", interrupted=True, skipped_calls=3, cut_sessions=1))
    drifts = [{"kind": "drops_reasoning", "detail": "leaves reasoning out", "message_index": 2}]
    report = {"trace": "t", "model": "m", "runs": [run], "ratios": None, "template_drifts": drifts}
    print_report(console, report, per_turn=True)
    text = console.export_text()
    assert "interrupted" in text
    assert "the chat template leaves reasoning out" in text
    assert "3 calls not made (1 session outgrew the context)" in text

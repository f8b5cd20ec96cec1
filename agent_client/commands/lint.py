"""`agent-client lint`: what breaks prefixes in a recorded session, for a person or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..access import Access
from ..client import RadixClient
from ..lint import Finding, lint, lint_live
from ..retry import RetryPolicy
from ..traces import read_trace
from ..words import counted
from .failures import FAILED, reported, say


@reported
def run(path: Path, format: str | None, target: str | None, as_json: bool, access: Access | None = None) -> int:
    """Returns 1 when anything was found. `target` names a runtime whose template and tokenizer are asked too."""
    trace = read_trace(path, format)
    for note in trace.notes:
        say(note)
    found = lint(trace)
    if target is not None:
        with RadixClient(target, access=access, retry=RetryPolicy(max_attempts=1)) as client:
            found += lint_live(trace, client)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], ensure_ascii=False, indent=2))
    else:
        looked = f"{counted(len(trace.sessions), 'session')}, {counted(trace.calls, 'call')}"
        print("\n".join([*_lines(found), f"{counted(len(found), 'finding')} in {looked}"]))
    return FAILED if found else 0


def _lines(found: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in found:
        message = "" if finding.message is None else f", message {finding.message}"
        lines += [
            f"{finding.rule}: session {finding.session}, call {finding.call}{message}",
            f"  what  {finding.what}",
            f"  cost  {finding.why}",
            f"  fix   {finding.fix}",
            "",
        ]
    return lines

"""Hours in minutes for the tiers: python -m tests.e2e.tiers.soak --minutes 30.

A real server with a device pool, host memory and a disk tier serves four times as many live tokens as the pool holds.
Calls are cancelled, sessions forked and cut, prefixes leased and flushed at random. Halfway the disk fails: writes are
refused, the file is cut in half, then overwritten in places; a while later it takes writes again, or does not
(--gone). Some replies are computed again without the cache and must be the same. Every so often everybody pauses, and
every block of every tier must be free or held once. At the end the server stops and starts anew over what it left.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.tiers.checked_server import CheckedServer, checked_server
from tests.e2e.tiers.sessions import Traffic
from tests.tiny_llama import save_tiny_llama

BLOCK = 16
BLOCKS = 512
LONGEST = 1200
# Of a conversation, from its first turn to its last.
MEAN_LENGTH = 470
BYTES_PER_TOKEN = {"tiny": 512, "smollm2": 46_080}
FLAGS = ("--block-size", str(BLOCK), "--num-blocks", str(BLOCKS), "--max-running", "8", "--verify-hits", "0.05")
# So many times the pool's tokens are in live conversations.
OVER_COMMIT = 4
WORKERS = 6
# Of the replies, so many are computed again.
SAMPLED = 0.15
CHECKS = 60
# When the disk stops taking writes, is cut, is scribbled on, and takes writes again: shares of the time.
FAILS, CUT, SCRIBBLED, RETURNS = 0.5, 0.58, 0.66, 0.75
RESTARTED = 24


@dataclass
class Figures:
    """What a soak prints."""

    model: str
    minutes: float
    pool_tokens: int
    checks: int = 0
    over_commit: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "model": self.model,
            "minutes": self.minutes,
            "pool_tokens": self.pool_tokens,
            "over_commit": round(sum(self.over_commit) / max(1, len(self.over_commit)), 2),
            "checks": self.checks,
            "rss_mib": [round(mib) for mib in self.rss_mib[:: max(1, len(self.rss_mib) // 6)]],
            **self.more,
            "wrong": self.wrong[:20],
        }


def metric(url: str, name: str) -> dict[str, float]:
    """The samples of a metric by its one label; empty where there is none."""
    with urlopen(url) as page:
        families = text_string_to_metric_families(page.read().decode())
        samples = [s for family in families for s in family.samples if s.name == name]
    return {"".join(s.labels.values()): s.value for s in samples}


class Disk:
    """The folder of a server's disk tier, from outside."""

    def __init__(self, server: CheckedServer, folder: Path, dice: random.Random) -> None:
        self._pid = server.process.pid
        self._folder = folder
        self._dice = dice
        self._limit = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)

    @property
    def _file(self) -> Path:
        [file] = self._folder.glob("*.radixkv")
        return file

    def fail(self) -> None:
        """Refuse every write to a file."""
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (0, self._limit[1]))

    def cut(self) -> None:
        """Lose the second half of the file."""
        with self._file.open("r+b") as file:
            file.truncate(self._file.stat().st_size // 2)

    def scribble(self) -> None:
        """Change bytes all over it."""
        size = self._file.stat().st_size
        with self._file.open("r+b") as file:
            for _ in range(max(8, size // 50_000)):
                file.seek(self._dice.randrange(size))
                file.write(self._dice.randbytes(64))

    def come_back(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, self._limit)


def soak(folder: Path, model: str, minutes: float, seed: int, *, returns: bool) -> Figures:
    """Run the traffic and return what came of it; `wrong` is empty if all is well."""
    figures = Figures(model, minutes, BLOCK * BLOCKS)
    path, size = model, BYTES_PER_TOKEN[model] * BLOCK * BLOCKS
    if model == "tiny":
        path = str(folder / "tiny")
        save_tiny_llama(folder / "tiny")
    disk_folder = folder / "disk"
    started = [*FLAGS, "--host-cache", str(size), "--disk-cache", f"{disk_folder}:{2 * size}"]
    started += ["--persist", str(folder / "persist")]
    with checked_server(folder, path, *started) as server:
        traffic = traffic_to(server, seed)
        disk = Disk(server, disk_folder, random.Random(seed))
        happenings = [(FAILS, disk.fail), (CUT, disk.cut), (SCRIBBLED, disk.scribble)]
        if returns:
            happenings.append((RETURNS, disk.come_back))
        traffic.start()
        begun = time.monotonic()
        for turn in range(1, CHECKS + 1):
            time.sleep(max(0.0, begun + 60 * minutes * turn / CHECKS - time.monotonic()))
            while happenings and happenings[0][0] <= turn / CHECKS:
                happened = happenings.pop(0)[1]
                happened()
                traffic.disk_fails |= happened == disk.fail
            if server.process.poll() is None:
                figures.over_commit.append(traffic.live_tokens / figures.pool_tokens)
                figures.rss_mib.append(server.rss_mib())
            traffic.pause()
            check(server, figures)
            if server.process.poll() is not None or turn == CHECKS:
                break
            traffic.resume()
        traffic.stop()
        conversations = [c for c in traffic.conversations if len(c.tokens) > BLOCK]
        tally = traffic.tally
        figures.more |= {**dict(sorted(tally.counts.items())), "tokens": dict(sorted(tally.tokens.items()))}
        figures.wrong += tally.wrong
        if server.process.poll() is None:
            note(server, figures)
        status = server.stop()
        # A flush that a failing disk does not let erase is logged with one.
        tracebacks = sum("Traceback" in line for line in server.log) - sum("NotErased:" in line for line in server.log)
        if status != 0 or tracebacks:
            figures.wrong.append(f"the server ended with {status} and {tracebacks} faults, its log is above")
            sys.stderr.writelines(server.log)
    with checked_server(folder, path, *started) as server:
        traffic = traffic_to(server, seed)
        cached = prompts = 0
        for conversation in conversations[:RESTARTED]:
            usage = traffic.recompute(conversation, 8)
            cached, prompts = cached + usage.cached_tokens, prompts + usage.prompt_tokens
        check(server, figures)
        traffic.stop()
        figures.wrong += traffic.tally.wrong
        status = server.stop()
        if status != 0:
            figures.wrong.append(f"after its restart the server ended with {status}, its log is above")
            sys.stderr.writelines(server.log)
        figures.more["after_restart"] = {"prompt": prompts, "cached": cached, **traffic.tally.counts}
    return figures


def traffic_to(server: CheckedServer, seed: int) -> Traffic:
    return Traffic(
        server.target,
        # Without the special tokens, which come first, and in either model's vocabulary.
        range(32, 250),
        live=OVER_COMMIT * BLOCKS * BLOCK // MEAN_LENGTH,
        longest=LONGEST,
        workers=WORKERS,
        sampled=SAMPLED,
        seed=seed,
    )


def check(server: CheckedServer, figures: Figures) -> None:
    """Every block of every tier, while nothing runs."""
    try:
        server.idle_books()
        figures.checks += 1
    except (AssertionError, ValueError, OSError) as error:
        figures.wrong.append(f"{type(error).__name__}: {error}")


def note(server: CheckedServer, figures: Figures) -> None:
    """What the tiers did, and that nothing that was found there was bad, though the disk was."""
    tiers = {
        name: metric(server.metrics_url, f"radixloop_tier_{name}")
        for name in ("blocks", "used_blocks", "fetched_tokens_total", "failed_blocks_total", "lost_blocks_total")
    }
    verified = metric(server.metrics_url, "radixloop_verified_hits_total")
    figures.more |= {"tiers": tiers, "verified_hits": verified}
    figures.more["declined_tokens"] = sum(metric(server.metrics_url, "radixloop_tier_declined_tokens_total").values())
    if not tiers["failed_blocks_total"].get("disk"):
        figures.wrong.append("the disk failed, and no block is counted")
    for name in ("host", "disk"):
        if not tiers["fetched_tokens_total"].get(name):
            figures.wrong.append(f"nothing was fetched from {name}")
    if verified.get("mismatch"):
        figures.wrong.append(f"{verified['mismatch']:g} hits do not hold what computing gives")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.tiers.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", choices=sorted(BYTES_PER_TOKEN), default="tiny")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gone", action="store_true", help="the disk does not come back")
    parser.add_argument("--folder", type=Path, help="where the tiers lie; default: a temporary folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        figures = soak(Path(folder), asked.model, asked.minutes, asked.seed, returns=not asked.gone)
    print(json.dumps(figures.as_json()))
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

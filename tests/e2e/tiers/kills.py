"""Kills at random moments while the tiers write: python -m tests.e2e.tiers.kills --count 200.

One folder, a server after the other over it: each answers prompts whose replies are known, over a pool that is far too
small for them, and is killed (SIGKILL) at a random moment: while it serves, while it saves after SIGTERM, or while it
starts. The next one must start, and every reply must be the one that a server without tiers gave.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_client import RadixClient
from agent_client.errors import RadixloopError
from agent_client.retry import RetryPolicy
from tests.e2e.tiers.sessions import TIE
from tests.tiny_llama import save_tiny_llama

PROMPTS = 48
OUTPUT = 6
CLIENTS = 3
START_S = 120.0
# Of the kills, so many come while the server saves, and so many while it starts.
SAVING, STARTING = 0.3, 0.1
FLAGS = ("--block-size", "16", "--num-blocks", "96", "--port", "0", "--metrics-port", "off", "--log-level", "error")
# What it takes to serve, imported once: the servers are forked from a process that has it.
PRELOADED = ["torch", "transformers.models.llama.modeling_llama", "runtime.cli", "runtime.server"]


@dataclass(frozen=True)
class Known:
    """A prompt, what follows it, and where another token may follow because the two likeliest are a tie."""

    tokens: list[int]
    reply: list[int]
    tied: tuple[bool, ...]

    def right(self, reply: list[int]) -> bool:
        at = next((i for i, (a, b) in enumerate(zip(reply, self.reply, strict=True)) if a != b), None)
        return at is None or self.tied[at]


def serve(arguments: list[str], log: str) -> None:
    """Be a server, in a process of its own."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["radix-runtime", "serve", *arguments]
    from runtime.__main__ import main

    main()


class Servers:
    """Starts one server after the other."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._folder = folder
        self._model = model
        self.log = folder / "log"

    def begin(self, *flags: str) -> multiprocessing.process.BaseProcess:
        """A server that is starting."""
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        arguments = ["--model", str(self._model), "--ready-file", str(ready), *FLAGS, *flags]
        process = self._context.Process(target=serve, args=(arguments, str(self.log)), daemon=True)
        process.start()
        return process

    def target(self, process: multiprocessing.process.BaseProcess) -> str:
        """Where it listens, once it does. Raises AssertionError where it ends before."""
        ready = self._folder / "ready.json"
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if not process.is_alive() or time.monotonic() > deadline:
                raise AssertionError(f"a server did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.01)
        return str(json.loads(ready.read_text())["target"])


def known_prompts(servers: Servers, dice: random.Random) -> list[Known]:
    """Prompts that share beginnings, and the replies of a server without tiers and without the cache."""
    process = servers.begin()
    found = []
    with RadixClient(servers.target(process)) as client:
        trunks = [dice.choices(range(32, 250), k=400) for _ in range(4)]
        for _ in range(PROMPTS):
            tokens = dice.choice(trunks)[: dice.randrange(400)] + dice.choices(range(32, 250), k=dice.randrange(8, 300))
            reply = client.generate(
                tokens, max_tokens=OUTPUT, ignore_eos=True, bypass_cache=True, logprobs=True, top_logprobs=2
            )
            tied = tuple(step.top[0][1] - step.top[1][1] < TIE for step in reply.logprobs)
            found.append(Known(tokens, reply.token_ids, tied))
    process.kill()
    process.join()
    return found


class Round:
    """Clients of one server until it is gone."""

    def __init__(self, target: str, known: list[Known], seed: str, tally: Counter[str], wrong: list[str]) -> None:
        self._target = target
        self._known = known
        self._tally = tally
        self._wrong = wrong
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(f"{seed}{n}"),)) for n in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _ask(self, dice: random.Random) -> None:
        with RadixClient(self._target, retry=RetryPolicy(max_attempts=1)) as client:
            while True:
                known = dice.choice(self._known)
                try:
                    reply = client.generate(known.tokens, max_tokens=OUTPUT, ignore_eos=True)
                except RadixloopError:
                    return
                self._tally.update(replies=1, **reply.usage.cached_by_tier)
                if not known.right(reply.token_ids):
                    self._wrong.append(f"{reply.token_ids} instead of {known.reply}, found {reply.usage}")


def run(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Kill `count` servers; return what happened, `wrong` is empty if all is well."""
    dice = random.Random(seed)
    save_tiny_llama(folder / "tiny")
    servers = Servers(folder, folder / "tiny")
    known = known_prompts(servers, dice)
    tiers = ("--host-cache", "1MiB", "--disk-cache", f"{folder / 'disk'}:8MiB", "--persist", str(folder / "persist"))
    tally: Counter[str] = Counter()
    wrong: list[str] = []
    kills: Counter[str] = Counter()
    longest_start = 0.0
    for number in range(count):
        process = servers.begin(*tiers)
        kind = dice.random()
        if kind < STARTING:
            time.sleep(dice.uniform(0, 1.0))
            kills["starting"] += 1
            process.kill()
            process.join()
            continue
        began = time.monotonic()
        try:
            target = servers.target(process)
        except AssertionError as error:
            wrong.append(str(error))
            process.kill()
            break
        longest_start = max(longest_start, time.monotonic() - began)
        clients = Round(target, known, f"{seed} {number}", tally, wrong)
        time.sleep(dice.uniform(0.05, 1.2))
        if kind < STARTING + SAVING:
            kills["saving"] += 1
            assert process.pid is not None
            os.kill(process.pid, signal.SIGTERM)
            time.sleep(dice.uniform(0, 0.3))
        else:
            kills["serving"] += 1
        process.kill()
        process.join()
        clients.join()
    if wrong == [] and not tally["disk"]:
        wrong.append("nothing was ever found on disk")
    return {
        "kills": dict(kills),
        "longest_start_s": round(longest_start, 2),
        **dict(sorted(tally.items())),
        "wrong": wrong[:10],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.tiers.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = run(Path(folder), asked.count, asked.seed)
    print(json.dumps(told))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the gateway adds to the time to the first token and between tokens: python -m tests.e2e.gateway_latency.

The same prompts, whose KV is cached, go to the runtime by gRPC and through the gateway by turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx

from agent_client import Chat, Delta, RadixClient
from agent_client.prompts import Prompt

from .conftest import running_server
from .gateway_process import running_gateway

# A text that the model goes on from in words.
TEXT = "\n".join(page.read_text() for page in sorted(Path("docs").glob("e*.md")))
PROMPT_TOKENS = 4096
REPLY_TOKENS = 8
ROUNDS = 50
Times = tuple[float, float]


def timed(pieces: Iterable[object]) -> Times:
    """Seconds to the first piece of a reply, and between its pieces."""
    begun = time.perf_counter()
    at = [time.perf_counter() for _ in pieces]
    return at[0] - begun, (at[-1] - at[0]) / max(1, len(at) - 1)


def direct(client: RadixClient, prompt: Prompt) -> Iterator[object]:
    stream = client.stream(prompt, max_tokens=REPLY_TOKENS, ignore_eos=True)
    return (event for event in stream if isinstance(event, Delta) and event.token_ids)


def over_http(http: httpx.Client, path: str, asked: dict[str, object]) -> Iterator[object]:
    body = {"model": "m", "max_tokens": REPLY_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, **asked}
    with http.stream("POST", path, json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                if choice.get("text") or choice.get("delta", {}).get("content"):
                    yield choice


def main(model: str = "smollm2") -> None:
    with (
        running_server(Path(tempfile.mkdtemp()), model, "--num-blocks", "1024", "--drafts", "off") as server,
        running_gateway(server.target, "--alias", "m") as url,
        httpx.Client(base_url=url, timeout=120) as http,
        RadixClient(server.target) as client,
    ):
        tokens = list(client.tokenize(TEXT).token_ids)[:PROMPT_TOKENS]
        words = client.detokenize(tokens)
        messages = [{"role": "user", "content": words}]
        ways: dict[str, Callable[[], Iterator[object]]] = {
            "token ids, gRPC": lambda: direct(client, tokens),
            "token ids, /v1/completions": lambda: over_http(http, "/v1/completions", {"prompt": tokens}),
            "chat, gRPC": lambda: direct(client, Chat(messages)),
            "chat, /v1/chat/completions": lambda: over_http(http, "/v1/chat/completions", {"messages": messages}),
        }
        times: dict[str, list[Times]] = {name: [] for name in ways}
        for turn in range(ROUNDS + 2):
            for name, ask in ways.items():
                taken = timed(ask())
                if turn >= 2:
                    times[name].append(taken)
        print(f"{ROUNDS} rounds, prompts of {len(tokens)} and {client.tokenize(messages).count} tokens, cached")
        for name, taken in times.items():
            first, between = (sorted(1000 * seconds for seconds in column) for column in zip(*taken, strict=True))
            told = (statistics.median(first), first[len(first) * 9 // 10], statistics.median(between))
            print("{:28} TTFT {:7.2f} ms (p90 {:7.2f}), between tokens {:6.2f} ms".format(name, *told))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Many generations under many schemas, each document validated by a library that knows nothing of grammars."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from jsonschema.validators import validator_for
from radixloop.v1 import inference_pb2

from tests.runtime.grammar.schemas import SCHEMAS
from tests.runtime.services_harness import Answer, Server, chat_prompt, generate

# No document of the schemas is longer, not even in a vocabulary of single bytes.
MAX_TOKENS = 2500


@dataclass
class Outcome:
    """What became of the generations of a run."""

    valid: int = 0
    tokens: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    distinct: Counter[str] = field(default_factory=Counter)


def run(server: Server, each: int, concurrency: int = 8, names: Iterable[str] = SCHEMAS) -> Outcome:
    """`each` generations at temperature 1 of every schema, so many at a time."""
    outcome = Outcome()
    jobs = [(name, seed) for seed in range(each) for name in names]
    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        for (name, seed), answer in zip(jobs, pool.map(lambda job: _one(server, *job), jobs), strict=True):
            outcome.tokens += len(answer.ids)
            fault = _fault(name, answer)
            if fault is None:
                outcome.valid += 1
                outcome.distinct[name] += 1
            else:
                outcome.faults.append(f"{name}, seed {seed}: {fault}: {answer.text[:200]!r}")
    outcome.seconds = time.perf_counter() - began
    return outcome


def _one(server: Server, name: str, seed: int) -> Answer:
    request, schema = SCHEMAS[name]
    return generate(
        server,
        chat_prompt(("user", f"{request} Answer in JSON.")),
        None,
        json_schema=json.dumps(schema),
        sampling={"temperature": 1.0, "seed": seed, "max_tokens": MAX_TOKENS},
    )


def _fault(name: str, answer: Answer) -> str | None:
    reason = answer.deltas[-1].finish_reason
    if reason != inference_pb2.FINISH_REASON_EOS:
        return f"ended by {inference_pb2.FinishReason.Name(reason)}"
    schema = SCHEMAS[name][1]
    try:
        document = json.loads(answer.text)
    except ValueError as error:
        return str(error)
    validator = validator_for(schema)(schema, format_checker=validator_for(schema).FORMAT_CHECKER)
    return next((error.message for error in validator.iter_errors(document)), None)

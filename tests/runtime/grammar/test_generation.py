"""Generation under a grammar: what the engine writes, whatever else it does at the time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from runtime.drafting.drafts import DraftSettings, DraftSource
from runtime.errors import EngineFailed
from runtime.events import FinishReason
from runtime.grammar import GrammarRefused, GrammarSpec, JobGrammar, mask_worker
from runtime.grammar.xgrammar_library import XGrammarLibrary
from runtime.models.loaded_model import LoadedModel
from runtime.sampling.detokenizer import silent_token_ids
from tests.runtime.engine_harness import Harness, Reply, running
from tests.runtime.grammar.stuck import StuckGrammar

BLOCK = 16
ALL_DRAFTS = DraftSettings(frozenset(DraftSource), longest=8, adaptive=False)
LIST = GrammarSpec("regex", r"(?:red|green|blue)(?:, (?:red|green|blue)){3,6}\.")
RECORD = GrammarSpec(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 12},
                "tags": {"type": "array", "items": {"enum": ["alpha", "beta"]}, "minItems": 1, "maxItems": 4},
            },
            "required": ["name", "tags"],
        }
    ),
    plain=True,
)
CALL = '<tool_call>\n{"name": "ls", "arguments": '
LAZY = GrammarSpec(
    "structural_tag",
    json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "triggered_tags",
                "triggers": ["<tool_call>"],
                "tags": [
                    {"type": "tag", "begin": CALL, "content": {"type": "const_string", "value": "{}"}, "end": "}"}
                ],
            },
        }
    ),
    plain=True,
    lazy=True,
)


@pytest.fixture(scope="module")
def library(tiny: LoadedModel) -> XGrammarLibrary:
    return XGrammarLibrary.of_tokenizer(
        tiny.tokenizer, tiny.info.vocab_size, tiny.info.eos_token_ids, silent_token_ids(tiny.tokenizer)
    )


@pytest.fixture
def under(library: XGrammarLibrary) -> Any:
    @cache
    def compiled(spec: GrammarSpec) -> Any:
        return library.compile(spec)

    def grammar(spec: GrammarSpec, past_end: bool = False) -> JobGrammar:
        return JobGrammar(compiled(spec), spec.lazy, past_end, library.textless(spec), library.end_tokens)

    return grammar


def tokens_of(loaded: LoadedModel, text: str) -> list[int]:
    ids: list[int] = loaded.tokenizer(text)["input_ids"]
    return ids


def ask(harness: Harness, grammar: JobGrammar | None, text: str = "Name some colours:", **more: Any) -> Reply:
    sampling = {"max_tokens": 200, "ignore_eos": False, **more}
    return harness.submit(tokens_of(harness.loaded, text), grammar=grammar, **sampling)


def ended(reply: Reply, index: int = 0) -> FinishReason | None:
    reply.finished  # noqa: B018
    return reply.deltas(index)[-1].finish_reason


def valid(text: str) -> bool:
    record = json.loads(text)
    names, tags = len(record["name"]), set(record["tags"])
    return list(record) == ["name", "tags"] and 1 <= names <= 12 and tags <= {"alpha", "beta"}


def test_every_choice_of_a_request_follows_its_grammar(tiny: LoadedModel, under: Any) -> None:
    with running(tiny) as harness:
        lists = ask(harness, under(LIST), temperature=1.0, seed=1, n=6)
        records = ask(harness, under(RECORD), temperature=1.0, seed=2, n=6)
        free = ask(harness, None, max_tokens=20)
        assert {ended(lists, index) for index in range(6)} == {FinishReason.EOS}
        assert all(re.fullmatch(LIST.text, lists.text(index)) for index in range(6))
        assert len({lists.text(index) for index in range(6)}) > 1
        assert {ended(records, index) for index in range(6)} == {FinishReason.EOS}
        assert all(valid(records.text(index)) for index in range(6))
        alone = ask(harness, None, max_tokens=20)
        assert free.tokens == alone.tokens


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 7}, {"repetition_penalty": 1.3, "logprobs": True}]
)
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(LIST, id="list"),
        *(pytest.param(s, id=i, marks=pytest.mark.slow) for s, i in ((RECORD, "record"), (LAZY, "lazy"))),
    ],
)
def test_drafts_change_no_token(tiny: LoadedModel, under: Any, spec: GrammarSpec, sampling: dict[str, Any]) -> None:
    prompts = [
        'Such as {"name": "beta", "tags": ["alpha", "beta"]} or red, green, blue, red, green:',
        "Colours: red, green, blue, red, green, blue, red, green, blue: ",
    ]

    def all_of(harness: Harness) -> Iterator[list[int]]:
        for prompt in prompts:
            # What the tree offers after the first of these is against the grammar.
            yield ask(harness, None, prompt, max_tokens=40, **sampling).tokens
            for _ in range(2):
                yield ask(harness, under(spec), prompt, max_tokens=60, **sampling).tokens

    with running(tiny) as harness:
        expected = list(all_of(harness))
    with running(tiny, drafts=ALL_DRAFTS) as harness:
        assert list(all_of(harness)) == expected
        assert harness.engine.counters.accepted_draft_tokens > 20
        assert harness.engine.counters.draft_tokens > harness.engine.counters.accepted_draft_tokens


def test_a_draft_is_cut_where_the_grammar_refuses_it(tiny: LoadedModel, under: Any) -> None:
    run = under(LIST).start()
    for token in tokens_of(tiny, "red, "):
        run.accept(token)
    assert run.trim(tokens_of(tiny, "green, yellow")) == len("green, ")
    assert run.trim(tokens_of(tiny, "white")) == 0
    # It went back to where it was.
    for token in tokens_of(tiny, "blue, red, red."):
        run.accept(token)


@pytest.mark.parametrize("config", [{"max_batch_tokens": 1, "max_running": 1}, {"max_batch_tokens": 7}])
def test_prompts_in_chunks_change_no_token(tiny: LoadedModel, under: Any, config: dict[str, Any]) -> None:
    with running(tiny) as harness:
        expected = [ask(harness, under(spec), temperature=1.0, seed=3).tokens for spec in (LIST, RECORD)]
    with running(tiny, **config) as harness:
        replies = [ask(harness, under(spec), temperature=1.0, seed=3) for spec in (LIST, RECORD)]
        assert [reply.tokens for reply in replies] == expected


def test_preempted_runs_go_on_where_they_were(tiny: LoadedModel, under: Any) -> None:
    texts = [f"Question {index}, of colours and of other things:" for index in range(6)]
    with running(tiny) as harness:
        expected = [ask(harness, under(RECORD), text, temperature=1.0, seed=4).tokens for text in texts]
    blocks = 2 + sum(-(-len(tokens_of(tiny, text)) // BLOCK) for text in texts[:4])
    with running(tiny, num_blocks=blocks + 4, block_size=BLOCK, max_running=6) as harness:
        replies = [ask(harness, under(RECORD), text, temperature=1.0, seed=4, max_tokens=90) for text in texts]
        assert [reply.tokens for reply in replies] == expected
        assert harness.engine.counters.preemptions > 0


def test_a_stop_string_ends_a_text_in_the_middle(tiny: LoadedModel, under: Any) -> None:
    with running(tiny) as harness:
        reply = ask(harness, under(LIST), stop=(", ",))
        assert ended(reply) is FinishReason.STOP
        assert reply.text() in ("red", "green", "blue")


def test_max_tokens_end_a_text_in_the_middle(tiny: LoadedModel, under: Any) -> None:
    with running(tiny) as harness:
        reply = ask(harness, under(LIST), max_tokens=9)
        assert ended(reply) is FinishReason.LENGTH
        assert len(reply.tokens) == 9


def test_past_its_end_a_text_goes_on_as_long_as_it_may(tiny: LoadedModel, under: Any) -> None:
    with running(tiny) as harness:
        endless = ask(harness, under(GrammarSpec("regex", "a*"), past_end=True), max_tokens=30)
        assert (ended(endless), endless.text()) == (FinishReason.LENGTH, "a" * 30)
        short = ask(harness, under(GrammarSpec("regex", "a{0,4}"), past_end=True), max_tokens=30)
        assert (ended(short), short.text()) == (FinishReason.EOS, "aaaa")


def test_log_probabilities_are_the_models_own(tiny: LoadedModel, under: Any) -> None:
    with running(tiny) as harness:
        forced = ask(harness, under(GrammarSpec("regex", "q")), top_logprobs=20)
        forced.finished  # noqa: B018
        free = ask(harness, None, max_tokens=1, top_logprobs=20)
        free.finished  # noqa: B018
        [first] = forced.deltas()[0].logprobs
        [unmasked] = free.deltas()[0].logprobs
        assert first.top == unmasked.top
        assert first.logprob is not None
        assert first.logprob < unmasked.logprob


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
def test_free_text_is_as_free_as_without_a_grammar(tiny: LoadedModel, under: Any, sampling: dict[str, Any]) -> None:
    """Special tokens and end tokens too, under ignore_eos."""
    with running(tiny) as harness:
        free = ask(harness, None, max_tokens=150, ignore_eos=True, **sampling)
        lazy = ask(harness, under(LAZY, past_end=True), max_tokens=150, ignore_eos=True, **sampling)
        assert lazy.tokens == free.tokens


def test_a_call_that_has_begun_is_completed(tiny: LoadedModel, under: Any) -> None:
    run = under(LAZY).start()
    for token in tokens_of(tiny, "Well, <tool_call>"):
        run.accept(token)
    with pytest.raises(EngineFailed, match="against the grammar"):
        run.accept(tokens_of(tiny, "x")[0])
    for token in tokens_of(tiny, '\n{"name": "ls", "arguments": {}} and more'):
        run.accept(token)


@pytest.mark.parametrize(
    ("seconds", "says"), [(1.5, "over 0.3 s"), pytest.param(0.05, "each time", marks=pytest.mark.slow)]
)
def test_a_grammar_that_holds_up_the_others_ends_its_own_request(
    tiny: LoadedModel, under: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, says: str
) -> None:
    monkeypatch.setattr(mask_worker, "LONGEST_WAIT_S", 0.3)
    stuck = JobGrammar(StuckGrammar(seconds), False, False, frozenset(), frozenset())
    with running(tiny) as harness:
        expected = ask(harness, under(LIST)).tokens
        slow = ask(harness, stuck)
        other = ask(harness, under(LIST))
        assert isinstance(slow.wait().error, GrammarRefused)
        assert says in str(slow.error)
        assert other.tokens == expected
        assert ask(harness, under(LIST)).tokens == expected

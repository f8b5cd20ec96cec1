"""Texts that keep the ids they were generated with: exact, per namespace, bounded."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from runtime.histories.boundaries import NO_BOUNDARIES, find_boundaries
from runtime.histories.drift import find_drifts, sample_chats
from runtime.histories.encoder import HistoryEncoder, added_in_front
from runtime.histories.longest_prefix import longest_prefix
from runtime.histories.text_memory import NODE_BYTES, TextMemory
from runtime.prompting.chat import ChatRenderer
from tests.runtime.chat_templates import ALTERNATING, LAST_ONLY, NATIVE, PLAIN, spaced_tokenizer, tokenizer

MIB = 2**20
REASONS = PLAIN.replace(
    "{{ m['content'] }}", "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
)
DATED = "{{ strftime_now('%d') }}" + PLAIN


class Coder:
    """A memory over a tokenizer of bytes, where a reply may be written in any ids."""

    def __init__(self, template: str = PLAIN, max_bytes: int = MIB, core: Any = None) -> None:
        self.tokenizer = core or tokenizer(template)
        boundaries = find_boundaries(self.tokenizer, self.ids, sample_chats(ChatRenderer(self.tokenizer)))
        self.memory = TextMemory(max_bytes)
        self.encoder = HistoryEncoder(self.tokenizer, boundaries, self.memory, added_in_front(self.tokenizer))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str, space: str = "a", plain: int = 0, chat: bool = True) -> tuple[list[int], Any]:
        ids, begun = self.encoder.encode(space, text, self.ids, special_added=not chat, plain_tokens=plain)
        assert self.decode(ids) == text
        return ids.tolist(), begun

    def decode(self, ids: Any) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def merging() -> Any:
    """A tokenizer that has a token for "ab", which a model need not use."""
    made = tokenizer(PLAIN)
    made.add_tokens(["ab"])
    return made


HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
NEXT = "<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"


def test_a_history_keeps_the_ids_that_it_was_generated_with() -> None:
    coder = Coder(core=merging())
    prompt, begun = coder.encode(HEAD)
    assert prompt == coder.ids(HEAD)
    written = [*coder.ids("a"), *coder.ids("b"), coder.tokenizer.eos_token_id]
    assert coder.ids("ab") != written[:2]
    coder.encoder.learn(begun, written, "ab")
    following, _ = coder.encode(HEAD + "ab" + NEXT)
    assert following == prompt + written[:2] + coder.ids(NEXT)
    # Another namespace, another text and a demand for plain ids know nothing of it.
    assert coder.encode(HEAD + "ab" + NEXT, space="b")[0] == coder.ids(HEAD + "ab" + NEXT)
    assert coder.encode(HEAD + "abc" + NEXT)[0] == coder.ids(HEAD + "abc" + NEXT)
    assert coder.encode(HEAD + "ab" + NEXT, plain=len(prompt) + 3)[0] == coder.ids(HEAD + "ab" + NEXT)
    assert coder.encode(HEAD + "ab" + NEXT, plain=2)[0] == following


@pytest.mark.parametrize(
    ("written", "said", "kept"),
    [
        ("ab", "ab", 2),
        ("abSTOP", "ab", 2),
        ("äb", "ä", 2),
        ("ab", "xy", None),
        ("ab", "", None),
    ],
)
def test_only_ids_that_decode_to_what_was_said_are_kept(written: str, said: str, kept: int | None) -> None:
    coder = Coder(core=merging())
    prompt, begun = coder.encode(HEAD)
    ids = [token for letter in written for token in coder.ids(letter)]
    coder.encoder.learn(begun, ids, said)
    following, _ = coder.encode(HEAD + said + NEXT)
    expected = coder.ids(HEAD + said + NEXT) if kept is None else prompt + ids[:kept] + coder.ids(NEXT)
    assert following == expected
    assert (coder.encoder.books().replies_kept, coder.encoder.books().replies_not_kept) == ((1, 0) if kept else (0, 1))


def test_half_a_token_of_a_stop_string_is_tokenised_again() -> None:
    coder = Coder(core=merging())
    prompt, begun = coder.encode(HEAD)
    ab = coder.tokenizer.convert_tokens_to_ids("ab")
    coder.encoder.learn(begun, [*coder.ids("x"), ab], "xa")
    assert coder.encode(HEAD + "xa" + NEXT)[0] == prompt + coder.ids("x") + coder.ids("a") + coder.ids(NEXT)


@pytest.mark.parametrize("behind", ["", "ab", "a" * 100])
def test_behind_a_special_token_that_the_text_leaves_out_the_reply_is_tokenised_again(behind: str) -> None:
    coder = Coder(core=merging())
    prompt, begun = coder.encode(HEAD)
    before = [*coder.ids("a"), *coder.ids("b")]
    after = [token for letter in behind for token in coder.ids(letter)]
    coder.encoder.learn(begun, [*before, coder.tokenizer.eos_token_id, *after], f"ab{behind}")
    assert coder.encode(f"{HEAD}ab{behind}{NEXT}")[0] == prompt + before + coder.ids(behind) + coder.ids(NEXT)


def test_a_text_goes_on_in_the_middle_of_a_piece() -> None:
    coder = Coder(core=merging())
    text = "once upon"
    for step in range(4):
        ids, begun = coder.encode(text, chat=False)
        written = [*coder.ids("a"), *coder.ids("b")]
        coder.encoder.learn(begun, written, "ab")
        text += "ab"
        assert coder.encode(text, chat=False)[0] == ids + written
        text += f" and {step}"
    assert coder.tokenizer.convert_tokens_to_ids("ab") not in coder.encode(text, chat=False)[0]


def test_special_tokens_that_are_spelt_out_stay_what_they_were() -> None:
    coder = Coder()
    prompt, begun = coder.encode(HEAD)
    spelt = [token for char in "<|im_end|>" for token in coder.ids(char)]
    coder.encoder.learn(begun, spelt, "<|im_end|>")
    assert coder.encode(HEAD + "<|im_end|>" + NEXT)[0] == coder.ids(HEAD + "<|im_end|>" + NEXT)
    assert prompt == coder.ids(HEAD)


def test_a_tokenizer_that_puts_spaces_in_front_of_texts_stays_exact() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"
    core = spaced_tokenizer(template)
    encoder = HistoryEncoder(core, NO_BOUNDARIES, TextMemory(MIB), added_in_front(core))

    def ids(text: str) -> list[int]:
        return list(core(text, add_special_tokens=False)["input_ids"])

    prompt, begun = encoder.encode("a", "hi hi", ids, special_added=False)
    assert begun is not None
    written = [core.convert_tokens_to_ids(piece) for piece in ("▁", "h", "hi")]
    encoder.learn(begun, written, " hhi")
    following, _ = encoder.encode("a", "hi hi hhi</s>hi", ids, special_added=False)
    assert following.tolist()[: len(prompt) + 3] == [*prompt.tolist(), *written]
    assert core.decode(following).replace(" ", "") == "hihihhi</s>hi"


def test_the_memory_is_bounded_and_conversations_in_use_stay() -> None:
    coder = Coder(max_bytes=60 * NODE_BYTES)
    live = "<|im_start|>system\nkept<|im_end|>\n"
    for number in range(200):
        coder.encode(live)
        _, begun = coder.encode(f"<|im_start|>user\nnumber {number}<|im_end|>\n<|im_start|>assistant\n", f"s{number}")
        coder.encoder.learn(begun, coder.ids("yes"), "yes")
        books = coder.memory.books()
        assert books.bytes <= 60 * NODE_BYTES
    assert books.forgotten_bytes > 0
    assert coder.encoder.books().remembered_tokens >= 199 * 1
    nothing = Coder(max_bytes=1)
    _, begun = nothing.encode(HEAD)
    nothing.encoder.learn(begun, nothing.ids("yes"), "yes")
    assert nothing.memory.books().bytes == 0


def test_random_conversations_are_exact_and_take_what_was_written() -> None:
    rng = random.Random(5)
    coder = Coder(core=merging(), max_bytes=200 * NODE_BYTES)
    histories = {space: [HEAD] for space in "ab"}
    for _ in range(300):
        space = rng.choice("ab")
        text = rng.choice(histories[space])
        ids, begun = coder.encode(text, space)
        said = "".join(rng.choices("abcä<|im_end", k=rng.randrange(6)))
        written = [token for char in said for token in coder.ids(char)]
        if begun is not None:
            coder.encoder.learn(begun, [*written, coder.tokenizer.eos_token_id], said)
        following, _ = coder.encode(text + said + NEXT, space)
        assert len(ids) < len(following)
        histories[space].append(text + said + NEXT)


def test_the_longest_prefix_is_that_of_a_plain_search() -> None:
    rng = random.Random(3)
    for _ in range(300):
        texts = sorted({"".join(rng.choices("ab", k=rng.randrange(1, 6))) for _ in range(rng.randrange(12))})
        text = "".join(rng.choices("ab", k=rng.randrange(8)))
        plain = max((each for each in texts if text.startswith(each)), key=len, default=None)
        assert longest_prefix(texts, text) == plain


@pytest.mark.parametrize(
    ("template", "kinds"),
    [
        (PLAIN, []),
        (NATIVE, []),
        (ALTERNATING, ["rewrites_history"]),
        (LAST_ONLY, ["rewrites_history"]),
        (REASONS, ["drops_reasoning"]),
        (DATED, ["reads_the_clock"]),
        (None, []),
    ],
)
def test_what_a_template_does_to_a_growing_history(template: str | None, kinds: list[str]) -> None:
    assert [drift.kind for drift in find_drifts(ChatRenderer(tokenizer(template)))] == kinds


def test_where_reasoning_is_dropped_the_reply_is_named() -> None:
    (drift,) = find_drifts(ChatRenderer(tokenizer(REASONS)))
    assert drift.message == 2
    assert "reasoning" in drift.detail


def test_without_boundaries_nothing_but_replies_is_kept() -> None:
    made = tokenizer(None)
    assert find_boundaries(made, lambda text: list(made(text)["input_ids"]), []).pattern is None
    assert len(NO_BOUNDARIES.runs(np.array([1, 2, 3], np.int32))) == 1

"""The ids that a history gets decode to the text that was sent, however the model split what it wrote."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from runtime.histories.boundaries import NO_BOUNDARIES, find_boundaries
from runtime.histories.drift import sample_chats
from runtime.histories.encoder import Begun, HistoryEncoder, added_in_front
from runtime.histories.text_memory import NODE_BYTES, TextMemory
from runtime.prompting.chat import ChatRenderer
from runtime.sampling.detokenizer import IncrementalDetokenizer
from tests.runtime.chat_templates import PLAIN
from tests.runtime.histories.shapes import splitting_tokenizer

# White space of every kind, characters of one to four bytes, joined and combined ones, what looks like a special token.
PIECES = (
    *" \n\t\r",
    "  ",
    "\n\n",
    "\r\n",
    "\u00a0",
    "\u200b",
    "\u2028",
    *"aé日🙂𝔘",
    "e\u0301",
    "👩‍👩‍👧",
    "\ufffd",
    "<|im_end|>",
    "<|im_",
    "the river",
    " upon",
    "12.5",
    '{"a": [1]}',
)
HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
NEXT = "<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"


class Writer:
    """A model that writes texts in tokens drawn at random, and the memory of what it wrote."""

    def __init__(self, seed: int, *, chat: bool) -> None:
        self.rng = random.Random(seed)
        self.chat = chat
        self.tokenizer = splitting_tokenizer(PLAIN if chat else None)
        samples = sample_chats(ChatRenderer(self.tokenizer)) if chat else []
        boundaries = find_boundaries(self.tokenizer, self.ids, samples) if chat else NO_BOUNDARIES
        self.memory = TextMemory(100 * NODE_BYTES)
        self.encoder = HistoryEncoder(self.tokenizer, boundaries, self.memory, added_in_front(self.tokenizer))
        detokenizer = IncrementalDetokenizer(self.tokenizer, np.empty(0, np.int32))
        special = set(self.tokenizer.all_special_ids)
        spelt = {token: detokenizer._bytes_of(token) for token in range(len(self.tokenizer)) if token not in special}
        self.tokens = {spelling: token for token, spelling in spelt.items() if spelling}

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> tuple[list[int], Begun]:
        ids, begun = self.encoder.encode("a", text, self.ids, special_added=not self.chat)
        assert self.decoded(ids) == text
        looked_up = self.encoder.look_up("a", text, self.ids, special_added=not self.chat)
        # The piece that a look-up finds may have been forgotten for the prompt that was just remembered.
        assert self.decoded(looked_up) == text
        assert begun is not None
        return ids.tolist(), begun

    def decoded(self, ids: Any) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def text(self) -> str:
        return "".join(self.rng.choices(PIECES, k=self.rng.randrange(1, 8)))

    def written(self, text: str) -> list[int]:
        """The text in tokens drawn at random; it may end inside a character."""
        left, ids = text.encode(), []
        while left:
            sizes = [size for size in range(1, 12) if left[:size] in self.tokens]
            size = self.rng.choice(sizes)
            ids.append(self.tokens[left[:size]])
            left = left[size:]
        return ids[: max(1, len(ids) - self.rng.randrange(3))]

    def said(self, prompt: Sequence[int], output: Sequence[int]) -> str:
        """The text that the caller gets."""
        detokenizer = IncrementalDetokenizer(self.tokenizer, np.array(prompt, np.int32))
        return "".join([*(detokenizer.append(token) for token in output), detokenizer.flush()])


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_histories_decode_to_what_was_sent_and_keep_what_was_written(seed: int, chat: bool) -> None:
    writer = Writer(seed, chat=chat)
    text = HEAD if chat else writer.text()
    for turn in range(12):
        prompt, begun = writer.encode(text)
        output = writer.written(writer.text())
        said = writer.said(prompt, output)
        writer.encoder.learn(begun, output, said)
        following = text + said + (NEXT if chat else writer.text())
        ids, _ = writer.encode(following)
        whole = writer.decoded([*prompt, *output]) == text + said and "<|im_end|>" not in said
        if whole:
            assert ids[: len(prompt) + len(output)] == [*prompt, *output]
        # Of two replies of the same words to the same prompt, the first stays.
        text = following if len(following) < 400 else HEAD.replace("hi", f"hi {turn}")


@pytest.mark.parametrize("seed", range(12))
def test_what_a_stop_string_or_a_client_cut_off_is_tokenised_again(seed: int) -> None:
    writer = Writer(seed, chat=True)
    for _ in range(12):
        head = HEAD.replace("hi", f"hi {writer.rng.randrange(10**6)}")
        prompt, begun = writer.encode(head)
        output = writer.written(writer.text() + writer.text())
        said = writer.said(prompt, output)
        cut = said[: writer.rng.randrange(len(said) + 1)]
        writer.encoder.learn(begun, output, cut)
        ids, _ = writer.encode(head + cut + NEXT)
        # And without the white space that it ends with.
        stripped, _ = writer.encode(head + cut.rstrip() + NEXT)
        if "<|im_end|>" in cut:
            # A spelt-out special token is one when it comes back, as without a memory.
            continue
        assert ids[: len(prompt)] == stripped[: len(prompt)] == prompt
        whole = next((n for n in range(len(output), 0, -1) if cut.startswith(writer.said(prompt, output[:n]))), 0)
        if "\ufffd" not in cut:
            assert ids[len(prompt) : len(prompt) + whole] == output[:whole]

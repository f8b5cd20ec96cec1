"""Incremental text against the tokenizer's own decoding, for byte-level, byte-fallback and word-piece tokenizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from runtime.sampling.detokenizer import IncrementalDetokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "日本語の文章と漢字、それから한국어 문장 그리고 العربية",
    "emoji 🌍🚀👩‍👩‍👧 and accents: café naïve Ångström",
    "def main():\n    return {'a': 1}\n\n\tif x: pass",
] * 3
TEXTS = [
    "Hello there, the quick fox!",
    "  leading and trailing  ",
    "漢字かな交じり文 🌍🌍 end",
    "👩‍👩‍👧‍👦 family, then naïve café\n\n\tcode()",
    "ℝ∀∃ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0001f9d1🏽‍🚀",
    "�already replaced�",
]


def wrap(core: Tokenizer, **special: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **special)


def byte_level() -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=["<|begin|>", "<|end|>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    core.add_tokens([AddedToken("<tool>", special=False), AddedToken("naïve🌍", special=False)])
    return wrap(core, bos_token="<|begin|>", eos_token="<|end|>")


def byte_fallback() -> Any:
    """As Llama 2: spaces are ▁, a text begins with one, and unknown characters are spelt in <0x..> tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += sorted({char for char in "".join(CORPUS) if char.isascii() and char.isprintable() and char != " "})
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("a", "n"), ("o", "x"), ("▁", "f"), ("▁f", "ox")]
    vocab = {piece: rank for rank, piece in enumerate(dict.fromkeys([*pieces, *("".join(pair) for pair in merges)]))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    return wrap(core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace() -> Any:
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>"], show_progress=False)
    )
    return wrap(core, bos_token="<s>", unk_token="<unk>")


def word_piece() -> Any:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece()
    core.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    )
    return wrap(core, sep_token="[SEP]", unk_token="[UNK]")


class InPython:
    """A tokenizer without a fast back end, whose tokens are bytes: what is known of it is only `decode`."""

    def __init__(self) -> None:
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_ids = [256]
        self.decoded = 0

    def decode(self, token_ids: list[int], **_: Any) -> str:
        self.decoded += len(token_ids)
        return bytes(token for token in token_ids if token < 256).decode("utf-8", "replace")


TOKENIZERS = {
    "byte_level": byte_level(),
    "byte_fallback": byte_fallback(),
    "metaspace": metaspace(),
    "word": word_piece(),
}


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def pieces(tokenizer: Any, prompt: list[int], output: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, ids(prompt))
    return [*(detokenizer.append(token) for token in output), detokenizer.flush()]


def decoded(tokenizer: Any, token_ids: list[int]) -> str:
    return str(tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_decoded_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    output = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces(tokenizer, [], output)) == decoded(tokenizer, output)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_holds_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    output = tokenizer.encode(text, add_special_tokens=False)
    whole = decoded(tokenizer, output)
    parts = pieces(tokenizer, [], output)
    assert "".join(parts).count("�") == whole.count("�") == text.count("�")
    assert parts[-1] == ""


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_output_continues_its_prompt(name: str, cut: int) -> None:
    tokenizer = TOKENIZERS[name]
    everything = tokenizer.encode("the fox and the dog again", add_special_tokens=False)
    prompt, output = everything[:cut], everything[cut:]
    text = "".join(pieces(tokenizer, prompt, output))
    assert decoded(tokenizer, prompt) + text == decoded(tokenizer, everything)


@pytest.mark.parametrize("name", ["byte_fallback", "metaspace"])
def test_a_leading_space_stays_after_a_prompt_and_goes_at_the_start(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    fox = tokenizer.encode("fox", add_special_tokens=False)
    assert "".join(pieces(tokenizer, fox, fox)) == " fox"
    assert "".join(pieces(tokenizer, [], fox)) == "fox"
    # Special tokens have no text, so behind them alone a text still begins.
    assert "".join(pieces(tokenizer, [tokenizer.bos_token_id], fox)) == "fox"


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_random_tokens_of_byte_level_bpe_decode_exactly(data: st.DataObject) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    tokens = st.lists(st.integers(0, len(tokenizer) - 1) | st.integers(2, 257), max_size=30)
    output = data.draw(tokens)
    assert "".join(pieces(tokenizer, [], output)) == decoded(tokenizer, output)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_random_tokens_of_byte_fallback_decode_exactly_but_for_characters_before_a_fault(data: st.DataObject) -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    text_tokens = st.integers(259, len(tokenizer) - 1).map(lambda token: [token])
    characters = st.characters(min_codepoint=0x80, codec="utf-8").map(lambda char: [3 + byte for byte in char.encode()])
    # A run that is faulty from its first byte on, whatever else is in it.
    stray = st.lists(st.integers(0x80, 0xBF).map(lambda byte: 3 + byte), min_size=1, max_size=3)
    faults = st.tuples(stray, st.just([]) | characters).map(lambda run: [*run[0], *run[1], 259])
    groups = data.draw(st.lists(text_tokens | characters | faults, max_size=12))
    # A fault must not follow a sound character directly: those are the runs that decode replaces as a whole.
    output: list[int] = []
    for group in groups:
        output += [259, *group] if 3 + 0x80 <= group[0] < 3 + 0xC0 else group
    assert "".join(pieces(tokenizer, [], output)) == decoded(tokenizer, output)


def test_characters_before_a_fault_stay() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    euro = [3 + byte for byte in "€".encode()]
    parts = pieces(tokenizer, [259], [*euro, *euro[:2], 259])
    assert parts == ["", "", "€", "", "", "�� ", ""]


def test_a_character_that_stays_unfinished_becomes_a_replacement() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    rocket = tokenizer.convert_tokens_to_ids(["ð", "Ł", "ļ"])
    assert pieces(tokenizer, [], rocket) == ["", "", "", "�"]
    assert pieces(tokenizer, [], [*rocket, *tokenizer.encode("x")]) == ["", "", "", "�x", ""]


def test_a_character_begun_in_the_prompt_is_finished() -> None:
    for name in ("byte_level", "byte_fallback"):
        tokenizer = TOKENIZERS[name]
        if name == "byte_level":
            rocket = tokenizer.convert_tokens_to_ids(["ð", "Ł", "ļ", "Ģ"])
        else:
            rocket = [3 + byte for byte in "🚀".encode()]
        start = tokenizer.encode("the fox", add_special_tokens=False)
        assert pieces(tokenizer, [*start, *rocket[:3]], rocket[3:]) == ["🚀", ""]


def test_special_tokens_are_left_out_and_other_added_ones_are_not() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    fox = tokenizer.encode("fox", add_special_tokens=False)
    output = [*fox, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<tool>")]
    assert "".join(pieces(tokenizer, [], output)) == "fox<tool>"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    for tokenizer in TOKENIZERS.values():
        fox = tokenizer.encode("fox", add_special_tokens=False)
        assert "".join(pieces(tokenizer, fox, [len(tokenizer) + 5])) == ""


def test_a_tokenizer_in_python_is_served_by_its_decode_alone() -> None:
    tokenizer = InPython()
    text = "naïve 🌍 漢字"
    parts = pieces(tokenizer, [], [*text.encode(), 256])
    assert "".join(parts) == text
    assert not any("�" in part for part in parts)
    assert "".join(pieces(tokenizer, list(b"the "), [0xFF] * 9 + list(b"end"))) == "�" * 9 + "end"


@pytest.mark.parametrize("token", [0xFF, 0xE2, ord("a")])
def test_the_work_per_token_does_not_grow(token: int) -> None:
    tokenizer = InPython()
    detokenizer = IncrementalDetokenizer(tokenizer, ids([]))
    work = []
    for _ in range(200):
        before = tokenizer.decoded
        detokenizer.append(token)
        work.append(tokenizer.decoded - before)
    assert max(work[100:]) <= max(work[:100])


@pytest.mark.models
def test_random_tokens_of_a_real_model_decode_exactly(smollm2_tokenizer: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        length = int(rng.integers(1, 60))
        # Low ids are single bytes: half the stream is characters in pieces, most of them broken.
        output = np.where(
            rng.random(length) < 0.5, rng.integers(0, 300, length), rng.integers(0, len(smollm2_tokenizer), length)
        )
        output = output.tolist()
        assert "".join(pieces(smollm2_tokenizer, [], output)) == decoded(smollm2_tokenizer, output)


@pytest.mark.models
@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_a_real_model_come_back(smollm2_tokenizer: Any, text: str) -> None:
    output = smollm2_tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(smollm2_tokenizer, [], output)
    assert "".join(parts) == text
    assert "".join(parts).count("�") == text.count("�")

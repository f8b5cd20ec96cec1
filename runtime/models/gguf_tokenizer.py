"""The tokenizer of a GGUF file.

Versions of transformers differ in what they make of it; where one differs from the file, the file is right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Kinds of tokens in a file, by the numbers of llama.cpp.
_CONTROL, _USER_DEFINED = 3, 4
# Special tokens as transformers and as a file call them.
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def read_tokenizer(path: Path) -> Any:
    """The tokenizer as transformers holds it. Raises whatever gguf and transformers raise for a file that is bad."""
    from gguf import GGUFReader
    from tokenizers.models import Unigram
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    fields = GGUFReader(str(path)).fields

    def said(name: str) -> Any:
        field = fields.get(f"tokenizer.ggml.{name}")
        return None if field is None else field.contents()

    if isinstance(tokenizer.backend_tokenizer.model, Unigram) and said("model") == "llama":
        tokenizer = _merging(tokenizer, said("tokens"), said("token_type"), add_bos=bool(said("add_bos_token")))
    if said("pre") == "smollm":
        _split_digits(tokenizer)
    for role, name in _ROLES.items():
        token_id = said(f"{name}_token_id")
        if token_id is not None:
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(int(token_id)))
            tokenizer.init_kwargs.pop(f"{role}_token_id", None)
    return tokenizer


def _merging(read: Any, tokens: list[str], kinds: list[int], *, add_bos: bool) -> Any:
    """The tokenizer that merges neighbours, the earliest token first, where one was read that looks for the likeliest
    pieces: transformers 5.17 takes Gemma's for that kind."""
    from transformers import AddedToken

    # A run of spaces is such a run before merging begins.
    names = ["▁" * len(token) if token and not token.strip(" ") else token for token in tokens]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    made = type(read)(vocab=vocab, merges=_merges(vocab), add_bos_token=add_bos)
    for kind in (_CONTROL, _USER_DEFINED):
        special = kind == _CONTROL
        added = [name for name, token, of in zip(names, tokens, kinds, strict=True) if of == kind and name == token]
        made.add_tokens([AddedToken(name, special=special, normalized=False) for name in added], special_tokens=special)
    made.chat_template = read.chat_template
    return made


def _merges(vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, by the number of the third."""
    found: list[tuple[str, str]] = []
    for token in sorted(vocab, key=vocab.__getitem__):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        found += sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]), reverse=True)
    return found


def _split_digits(tokenizer: Any) -> None:
    """One by one, as SmolLM was trained: transformers does not read how text is cut before merging."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )

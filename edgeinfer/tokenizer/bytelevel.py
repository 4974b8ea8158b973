"""Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM, …): each byte is a printable character, words merge pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from edgeinfer.tokenizer.pretokenizers import PreTokenizer


def _alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where it prints, else the next one from U+0100 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


ALPHABET = _alphabet()
_BYTES = {character: bytes([byte]) for byte, character in enumerate(ALPHABET)}


class ByteLevelBPE:
    """Merging on the ``tokenizers`` library, by the words of one pre-tokenizer rule."""

    def __init__(
        self,
        visible: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        rule: PreTokenizer,
        count: int,
    ) -> None:
        """``visible`` tokens may come out of text. A byte without one is dropped, as in llama.cpp."""
        absent = [character for character in ALPHABET if character not in visible]
        stand_ins = {character: count + place for place, character in enumerate(absent)}
        self._drop_from = count if absent else None
        model = models.BPE(vocab={**visible, **stand_ins}, merges=list(merges), ignore_merges=rule.ignore_merges)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(expression), "isolated") for expression in rule.expressions),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of plain text; what stands before it makes no difference here."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids if self._drop_from is None else [index for index in ids if index < self._drop_from]

    @staticmethod
    def decode_text(text: str) -> bytes:
        """The bytes that a normal token's text stands for; a character outside the alphabet stands for itself."""
        return b"".join(_BYTES.get(character) or character.encode() for character in text)

"""BPE on characters, with spaces written as U+2581 (Gemma 4, Sarvam): merges as in GPT-2, texts as in SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import tokenizers
from tokenizers import models

from edgeinfer.tokenizer.sentencepiece import SPACE

_RUNS = re.compile(r"[^\n]+|\n+")


class SpacedBPE:
    """Merging on the ``tokenizers`` library, line by line; a character that no token holds becomes its bytes."""

    def __init__(
        self,
        ids: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        hidden: Collection[str],
        whole_newlines: bool,
    ) -> None:
        """``hidden`` tokens cannot come out of text. whole_newlines: a run of newlines that is a token merges not."""
        vocabulary = {text: index for text, index in ids.items() if text not in hidden}
        merges = [(a, b) for a, b in merges if a in vocabulary and b in vocabulary and a + b in vocabulary]
        self._tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
        newlines = (text for text in vocabulary if not text.strip("\n"))
        self._newlines = {text: vocabulary[text] for text in newlines} if whole_newlines else {}

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of plain text; what stands before it makes no difference here."""
        found: list[int] = []
        for run in _RUNS.findall(text.replace(" ", SPACE)):
            if run in self._newlines:
                found.append(self._newlines[run])
            else:
                found += self._tokenizer.encode(run, add_special_tokens=False).ids
        return found

    @staticmethod
    def decode_text(text: str) -> bytes:
        """The bytes that a normal token's text stands for."""
        return text.replace(SPACE, " ").encode()

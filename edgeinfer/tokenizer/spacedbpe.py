"""BPE on characters, with spaces written as U+2581 (Gemma 4, Sarvam): merges as in GPT-2, texts as in SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import models

from edgeinfer.tokenizer.sentencepiece import SPACE

_RUNS = re.compile(r"[^\n]+|\n+")


class SpacedBPE:
    """Merging on the ``tokenizers`` library, line by line; a character that no token holds becomes its bytes."""

    def __init__(self, visible: Mapping[str, int], merges: Sequence[tuple[str, str]], whole_newlines: bool) -> None:
        """``visible`` tokens may come out of text. whole_newlines: a run of newlines that is a token merges not."""
        model = models.BPE(vocab=dict(visible), merges=list(merges), byte_fallback=True)
        self._tokenizer = tokenizers.Tokenizer(model)
        newlines = (text for text in visible if not text.strip("\n"))
        self._newlines = {text: visible[text] for text in newlines} if whole_newlines else {}

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

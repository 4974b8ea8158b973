"""Token ids to text, as they are made."""

from __future__ import annotations

import codecs

from edgeinfer.tokenizer.vocabulary import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Gives the text of a growing list of ids, whole characters only.

    All pieces joined, ``finish()`` included, equal ``tokenizer.decode(ids, special, continues)``: bytes that are no
    UTF-8 become U+FFFD as soon as no later token could make them valid.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool = True, continues: bool = False) -> None:
        """special: show the text of control tokens. continues: these ids go on from earlier ones (see ``decode``)."""
        self._piece = tokenizer.piece
        self._special = special
        self._decode = _new_decoder("replace").decode
        self._strip = tokenizer.space_prefix and not continues

    def add(self, index: int) -> str:
        """The characters that this token completes; often none, when a character spans several tokens."""
        piece = self._piece(index, self._special)
        if self._strip:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._decode(piece)

    def finish(self) -> str:
        """What is left of a character that never became whole: U+FFFD or nothing."""
        return self._decode(b"", True)

"""Text from a model, a file or the network, made safe for a terminal.

A terminal obeys control bytes: a model's name could set the clipboard, a reply could rewrite the line above. Every
sink that a person looks at passes its text through here first; files and ``--json`` keep the text as it is.
"""

from __future__ import annotations

import unicodedata

_KEPT = frozenset("\n\t")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def sanitize(text: str, single_line: bool = False) -> str:
    """Replaces each control character by a visible symbol.

    C0 controls become Unicode's control pictures, everything else that a terminal may act on becomes ``\\u{hex}``:
    C1 controls, bidirectional overrides, line and paragraph separators, lone surrogates. Newlines and tabs stay,
    or become pictures too with ``single_line``. Works on pieces of a stream: no character depends on its neighbours.
    """
    if text.isprintable():  # the common case, in C
        return text
    return "".join(_visible(character, single_line) for character in text)


def _visible(character: str, single_line: bool) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if character in _KEPT:
        return chr(0x2400 + code) if single_line else character
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Zl", "Zp") or character in _BIDI:
        return f"\\u{{{code:x}}}"
    return character  # joiners, other spaces, private use, unassigned: they move no cursor

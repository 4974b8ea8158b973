"""Source code in colours: the kinds of token that a theme tells apart, by name."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from edgeinfer.app.render.lines import Line, Run, Text, wrap

WHOLE_LINES = 1000
"""Longer code is coloured in pieces of so many lines, which may differ at the seams."""
PIECE_LINES = 64

_KINDS: tuple[tuple[str, str], ...] = (
    ("Comment", "code-comment"),
    ("Keyword", "code-keyword"),
    ("Literal.String", "code-string"),
    ("Literal.Number", "code-number"),
    ("Name.Function", "code-name"),
    ("Name.Class", "code-name"),
    ("Name.Decorator", "code-name"),
    ("Name.Tag", "code-keyword"),
    ("Name.Builtin", "code-builtin"),
    ("Name.Attribute", "code-name"),
    ("Operator.Word", "code-keyword"),
    ("Generic.Deleted", "code-deleted"),
    ("Generic.Inserted", "code-string"),
    ("Generic.Heading", "code-keyword"),
    ("Error", "code"),
)
"""Style by the token's kind; the first that it belongs to."""


def code_lines(code: str, language: str, width: int, growing: bool = False) -> list[Line]:
    """The lines of a block of code, each filled to the edge. ``growing`` code is coloured in pieces, each once."""
    lines = code.split("\n")
    whole = not growing and len(lines) <= WHOLE_LINES
    size = len(lines) if whole else PIECE_LINES
    found: list[Line] = []
    for start in range(0, len(lines), size):
        found += _coloured("\n".join(lines[start : start + size]), language, width)
    return found


@lru_cache(maxsize=256)
def _coloured(code: str, language: str, width: int) -> list[Line]:
    text = Text()
    for kind, piece in _tokens(code, language):
        text.add(piece, kind)
    padding = Run(" ", "code")
    rows = wrap(text, width - 2, words=False)
    return [replace(row, fill="code").behind(padding) for row in rows]


def _tokens(code: str, language: str) -> list[tuple[str, str]]:
    lexer = _lexer(language)
    if lexer is None:
        return [("code", code)]
    tokens = [(_style(kind), piece) for kind, piece in lexer.get_tokens(code)]
    if "".join(piece for _, piece in tokens) != code:  # a lexer that is not exact shows nothing but its colours
        return [("code", code)]
    return tokens


@lru_cache(maxsize=64)
def _lexer(language: str) -> Any:
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _style(kind: Any) -> str:
    name = str(kind).removeprefix("Token.")
    special = next((style for prefix, style in _KINDS if name == prefix or name.startswith(prefix + ".")), "")
    return f"code {special}".strip() if special != "code" else "code"

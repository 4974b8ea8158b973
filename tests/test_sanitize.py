"""No text makes a terminal do anything but show it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.sanitize import sanitize

ATTACKS = {
    "clear screen": "\x1b[2J",
    "set clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "hyperlink": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "device control": "\x1bP1$r\x1b\\",
    "C1 control sequence": "\x9b31m",
    "overwrite the line": "safe\revil",
    "backspaces": "evil\b\b\b\b",
    "bidi override": "abc\u202edcba",
    "isolate": "\u2066x\u2069",
    "line separator": "a\u2028b",
    "delete": "\x7f",
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_becomes_visible(text: str) -> None:
    shown = sanitize(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in shown)
    assert shown != text


def test_no_character_of_unicode_turns_the_direction_of_others() -> None:
    shown = "".join(sanitize(chr(code)) for code in range(0x110000))
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not turning & set(map(unicodedata.bidirectional, set(shown)))


@given(st.text(st.characters(codec=None)))
def test_no_control_character_survives_and_pieces_join(text: str) -> None:
    shown = sanitize(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in shown)
    assert shown == "".join(sanitize(char) for char in text)
    assert "\n" not in sanitize(text, single_line=True)


@pytest.mark.parametrize("text", ["plain", "two\n\tlines", "naïve café", "日本語", "👩‍👩‍👧", "a\u00a0b", "ע\u05b4", ""])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert sanitize(text) == text

"""Tells the control tokens that a chat template writes from text that only looks like them.

A template renders a conversation to one string, and in a string ``<|im_end|>`` is the same whether the template or a
user wrote it. So what users, tools and files wrote goes into the template *masked*: characters that control tokens
are made of are replaced one for one by private-use characters. A control token in the rendered text that holds no
stand-in was written by the template; then the characters are put back. Lengths, order and white space stay as they
were, so that the logic of a template goes on working.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from edgeinfer.errors import BadRequest
from edgeinfer.tokenizer.specials import Partition

_PRIVATE_USE = (range(0x100000, 0x10FFFE), range(0xF0000, 0xFFFFE))
_PRIVATE_USED = re.compile("[\U000f0000-\U0010ffff]")
_ESCAPED = re.compile(r"\\u(db[8-9a-f][0-9a-f])\\u(d[c-f][0-9a-f]{2})")  # of JSON, with ensure_ascii
_KEPT_BY_JSON = '"\\'


class ControlTexts:
    """The texts that a tokenizer reads as control tokens, and where they are in other text."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self.tokens = control_tokens
        self.alphabet = sorted(set(chain.from_iterable(control_tokens)))
        self._texts = {index: text for text, index in control_tokens.items()}
        self._partition = Partition(control_tokens)

    def split(self, text: str) -> list[str | int]:
        """Plain text and the ids of control tokens, in order."""
        return self._partition.split(text)

    def found(self, text: str) -> list[str]:
        """The control texts in ``text``, in order."""
        return [self._texts[piece] for piece in self.split(text) if isinstance(piece, int)]

    def map(self, text: str, plain: Callable[[str], str], control: Callable[[str], str]) -> str:
        """``text`` with its plain pieces and its control texts replaced."""
        return "".join(
            control(self._texts[piece]) if isinstance(piece, int) else plain(piece) for piece in self.split(text)
        )


class Mask:
    """Stand-ins for the characters of control tokens, none of which occurs in ``used``."""

    def __init__(self, controls: ControlTexts, used: Iterable[str]) -> None:
        taken = {ord(character) for text in used for character in _PRIVATE_USED.findall(text)}
        free = (code for code in chain(*_PRIVATE_USE) if code not in taken)
        pairs = [(ord(character), code) for character, code in zip(controls.alphabet, free, strict=False)]
        if len(pairs) < len(controls.alphabet):
            raise BadRequest("messages: too many different private-use characters to tell text from control tokens")
        self._controls = controls
        self._all = dict(pairs)
        self._safe = {ord(c): self._all[ord(c)] for c in controls.alphabet if c.isprintable() and not _is_structure(c)}
        self._inverse = {code: character for character, code in pairs}

    def lookalikes(self, text: str) -> str:
        """``text`` with whole control texts masked."""
        return self._controls.map(text, str, lambda control: control.translate(self._all))

    def everything(self, text: str) -> str:
        """``text`` with every character masked that may be part of a control text; white space and quotes stay."""
        return self._controls.map(
            text, lambda plain: plain.translate(self._safe), lambda control: control.translate(self._all)
        )

    def read(self, rendered: str) -> Reading:
        """What a rendered text says, and which control tokens in it hold nothing masked."""
        rendered = _ESCAPED.sub(self._unescaped, rendered)
        controls = tuple(piece for piece in self._controls.split(rendered) if isinstance(piece, int))
        return Reading(rendered.translate(self._inverse), controls, rendered)

    def parts(self, reading: Reading, split: Callable[[str], Sequence[str | int]]) -> list[str | int]:
        """The text cut by a tokenizer's ``split`` at the special tokens that hold nothing masked."""
        return [piece if isinstance(piece, int) else piece.translate(self._inverse) for piece in split(reading.masked)]

    def _unescaped(self, match: re.Match[str]) -> str:
        pair = bytes.fromhex(match[1] + match[2]).decode("utf-16-be")
        return pair if ord(pair) in self._inverse else match[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """A rendered text, the control tokens in it that a template wrote, and the text with its stand-ins."""

    text: str
    controls: tuple[int, ...]
    masked: str


def _is_structure(character: str) -> bool:
    return character.isspace() or character in _KEPT_BY_JSON


def masked(value: Any, text: Callable[[str], str], key: Callable[[str], str]) -> Any:
    """Plain data with every string replaced by ``text`` of it, and every key of a mapping by ``key`` of it."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {key(name): masked(item, text, key) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [masked(item, text, key) for item in value]
    return value


def strings(value: Any) -> list[str]:
    """Every string in plain data, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [*value, *chain.from_iterable(map(strings, value.values()))]
    if isinstance(value, Sequence):
        return list(chain.from_iterable(map(strings, value)))
    return []


def agreed(light: Reading, strict: Reading) -> Reading | None:
    """The reading that two renderings of the same conversation support, or None where they disagree.

    ``light`` has only whole control texts masked: it is what the template makes of the conversation, but a template
    that cuts and joins strings can build a control token out of them. ``strict`` has everything masked: its control
    tokens are the template's own without doubt, but a template that compares strings may have taken another way.
    """
    if light.text == strict.text:
        return strict
    return light if light.controls == strict.controls else None

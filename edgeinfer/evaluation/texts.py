"""What a model is evaluated on: a text of the user's, or our own, in windows of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files

from edgeinfer.errors import BadRequest
from edgeinfer.tokenizer.vocabulary import Tokenizer

NAMES = ("prose", "facts", "code", "manual")
"""English, questions and figures, Python and Markdown: over 512 tokens each, written for this."""
WINDOW = 512


def own_texts() -> list[str]:
    """The texts that come with the package."""
    folder = files("edgeinfer.evaluation").joinpath("texts")
    return [folder.joinpath(f"{name}.txt").read_text(encoding="utf-8") for name in NAMES]


def windows(text: str | None, tokenizer: Tokenizer, length: int = WINDOW, most: int = 0) -> list[list[int]]:
    """Windows of ``length`` tokens, as llama-perplexity cuts a text; what does not fill the last one is left out.

    Where the model wants a first token, each window's first one is replaced by it. Without a text there is a window of
    each of our own, or windows of all of them behind each other where one is shorter than ``length``. ``most`` of them
    are taken, 0: all. Raises BadRequest for a text that fills no window.
    """
    if length < 2:
        raise BadRequest(f"window={length}: expected 2 tokens or more", "window")

    def encode(part: str) -> list[int]:
        return tokenizer.encode(part, add_bos=tokenizer.add_bos)

    tokens = _own_tokens(encode, length) if text is None else [encode(text)]
    found = [each[start : start + length] for each in tokens for start in range(0, len(each) - length + 1, length)]
    if not found:
        have = max(map(len, tokens))
        raise BadRequest(f"the text has {have} tokens, a window takes {length}: give a longer text or --window", "text")
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        for window in found:
            window[0] = tokenizer.bos_id
    return found[:most] if most else found


def _own_tokens(encode: Callable[[str], list[int]], length: int) -> Sequence[list[int]]:
    apart = [encode(text) for text in own_texts()]
    if min(map(len, apart)) >= length:
        return [each[:length] for each in apart]
    return [encode("\n\n".join(own_texts()))]

"""The figures that choose the next token: what each does, in a line."""

from __future__ import annotations

from typing import Any

from edgeinfer.errors import BadRequest
from edgeinfer.types import SamplingParams

EXPLAINED: dict[str, str] = {
    "temperature": "How far from the likeliest word: 0 is always the likeliest, 1 as the model learned it.",
    "top_p": "Keep the likeliest tokens that together have this share of the chance; 1 keeps all.",
    "top_k": "Keep so many of the likeliest tokens; 0 keeps all.",
    "min_p": "Drop tokens with less than this share of the likeliest one's chance; 0 drops none.",
    "max_tokens": "Tokens after which an answer is cut.",
    "repetition_penalty": "Above 1, tokens that came lately are made less likely.",
    "presence_penalty": "Taken off each token that came lately, once.",
    "frequency_penalty": "Taken off each token that came lately, as often as it came.",
    "penalty_window": "How many tokens back the penalties look; 0: all of them.",
    "seed": "The same number gives the same answer again; empty takes a new one each time.",
    "typical_p": "Keep tokens about as surprising as one expects here; 1 is off.",
    "top_n_sigma": "Keep tokens so many standard deviations from the best; 0 is off.",
    "xtc_probability": "How often the likeliest tokens are left out, for variety; 0 is off.",
    "xtc_threshold": "How likely a token must be to be left out so.",
    "dry_multiplier": "How much the repeating of a whole phrase costs; 0 is off.",
    "dry_base": "How much faster the cost grows with each token that is repeated.",
    "dry_allowed_length": "Tokens that may be repeated without cost.",
    "mirostat": "Steer towards an even surprise, in place of the filters above.",
    "mirostat_tau": "The surprise that mirostat steers to.",
    "mirostat_eta": "How fast mirostat steers.",
}
"""In the order that the settings list them."""


def default(name: str) -> Any:
    return getattr(SamplingParams(), name)


def checked(name: str, value: Any) -> Any:
    """Raises BadRequest for a value that the figure cannot have."""
    getattr(SamplingParams(**{name: value}), name)
    return value


def read(name: str, text: str) -> Any:
    """What was typed, as a value; None for nothing. Raises BadRequest."""
    text = text.strip()
    if not text:
        return None
    if isinstance(default(name), bool):
        if text.lower() not in ("true", "false"):
            raise BadRequest(f"{name}={text!r}: expected true or false", name)
        return checked(name, text.lower() == "true")
    try:
        value = float(text) if isinstance(default(name), float) else int(text)
    except ValueError:
        whole = "" if isinstance(default(name), float) else "whole "
        raise BadRequest(f"{name}={text!r:.40}: expected a {whole}number", name) from None
    return checked(name, value)

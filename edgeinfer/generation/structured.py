"""Answers that keep to a grammar: JSON schema, regular expression, choices or Lark, by llguidance.

Before each token the grammar says which tokens may come; the sampler sees no others, so every sampler is exact. A
keyword that llguidance does not know is an error before anything is generated, never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import BackendUnavailable, BadRequest, EdgeInferError

NAMES = ("schema", "regex", "choices", "grammar")
_WHITE_SPACE = r"[\x20\x0A]{1,24}"  # between JSON's signs: indented as people do, but not without end
_INSTALL = "pip install llguidance"


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def end_ids(self) -> Collection[int]: ...
    def token_bytes(self, token: int, /) -> bytes: ...
    def encode(self, text: str, /) -> list[int]: ...
    def is_control(self, token: int, /) -> bool: ...


def compiled(options: Mapping[str, Any]) -> str:
    """The grammar that ``schema``, ``regex``, ``choices`` or ``grammar`` (Lark) asks for, checked; "" for none.

    Raises BadRequest with what is wrong in it, and BackendUnavailable where llguidance is not installed.
    """
    given = {name: options[name] for name in NAMES if options.get(name) is not None}
    if not given:
        return ""
    if len(given) > 1:
        raise BadRequest(f"{' and '.join(given)}: an answer keeps to one of them", next(iter(given)))
    name, value = next(iter(given.items()))
    matcher = _library().LLMatcher
    try:
        text = _BUILDERS[name](matcher, value)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}", name) from None
    wrong, messages = matcher.validate_grammar_with_warnings(text)
    if wrong or messages:
        raise BadRequest(f"{name}: {' '.join(str(messages[0]).split()):.300}", name)
    return str(text)


def json_rule(schema: Mapping[str, Any]) -> str:
    """A JSON schema, checked, as a part of a grammar in Lark's language."""
    compiled({"schema": schema})
    return "%json " + json.dumps({"x-guidance": {"whitespace_pattern": _WHITE_SPACE}, **schema})


def assembled(rules: str) -> str:
    """The grammar of rules that were made here and may name tokens by ``<[id]>``, which only a model can check."""
    return str(_library().LLMatcher.grammar_from_lark(rules))


class Structure:
    """A vocabulary as llguidance knows it; made once for a model."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.end_ids:
            raise BadRequest("the model names no token that ends an answer, which a grammar needs", "grammar")
        self._vocabulary = vocabulary
        self._tokenizer = _library().LLTokenizer(_library().TokenizerWrapper(_Words(vocabulary)))

    def constraint(self, grammar: str, end_ids: Collection[int], vocab_size: int) -> Constraint:
        """One answer's way through a grammar that ``compiled`` made."""
        matcher = _library().LLMatcher(self._tokenizer, grammar, log_level=0)
        return Constraint(matcher, end_ids, vocab_size, self._vocabulary)


class Constraint:
    """Which tokens may come next in one answer."""

    def __init__(self, matcher: Any, end_ids: Collection[int], vocab_size: int, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._ends = list(end_ids)
        self._vocab_size = vocab_size
        self._check()

    @property
    def finished(self) -> bool:
        """Nothing may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits (V,) with -inf for all tokens that may not come. Where the answer may end, any end token may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.zeros(self._vocab_size, bool)
        known = np.unpackbits(bits, bitorder="little")[: self._vocab_size]
        allowed[: len(known)] = known
        allowed[self._ends] = self._matcher.is_accepting()
        return np.where(allowed, logits, -np.inf).astype(np.float32)

    def forced(self) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens that must come next, and tokens that spell what must follow these in the usual way."""
        if self.finished:
            return (), ()
        tokens: list[int] = self._matcher.compute_ff_tokens()
        spelled: bytes = self._matcher.compute_ff_bytes()
        rest = spelled[sum(len(self._vocabulary.token_bytes(token)) for token in tokens) :]
        try:
            return tokens, self._vocabulary.encode(rest.decode()) if rest else ()
        except UnicodeDecodeError:  # it ends inside a character
            return tokens, ()

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many first ones of ``tokens`` may come next; an end token counts as none."""
        inside = next((place for place, token in enumerate(tokens) if token in self._ends), len(tokens))
        return int(self._matcher.validate_tokens([int(token) for token in tokens[:inside]])) if inside else 0

    def take(self, token: int) -> None:
        """Goes on with a token that was chosen among the allowed ones."""
        if token not in self._ends:
            self._matcher.consume_token(token)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().split("\n")[0]
            raise EdgeInferError(f"the grammar cannot be kept to here: {reason:.200}; simplify it")


class _Words:
    """A vocabulary in the form that llguidance asks for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = vocabulary.bos_id
        self.tokens = [vocabulary.token_bytes(index) for index in range(vocabulary.vocab_size)]
        self.special_token_ids = [index for index in range(vocabulary.vocab_size) if vocabulary.is_control(index)]
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def _schema(matcher: Any, value: Any) -> str:
    if hasattr(value, "model_json_schema"):  # a pydantic class
        value = value.model_json_schema()
    if isinstance(value, str):
        value = json.loads(value)
    if value is True:  # a schema that allows everything, as {} does
        value = {}
    if not isinstance(value, Mapping):
        raise ValueError(f"found {value!r:.40}, expected a JSON schema or a pydantic class")
    return str(matcher.grammar_from_json_schema(json.dumps(value), {"whitespace_pattern": _WHITE_SPACE}))


def _regex(matcher: Any, value: Any) -> str:
    return str(matcher.grammar_from_regex(_text(value)))


def _choices(matcher: Any, value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f"found {value!r:.40}, expected a list of texts")
    return str(matcher.grammar_from_lark("start: " + " | ".join(json.dumps(_text(item)) for item in value)))


def _lark(matcher: Any, value: Any) -> str:
    return str(matcher.grammar_from_lark(_text(value)))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"found {value!r:.40}, expected a text that is not empty")
    return value


_BUILDERS = {"schema": _schema, "regex": _regex, "choices": _choices, "grammar": _lark}


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise BackendUnavailable(f"structured output needs llguidance; install it with: {_INSTALL}", _INSTALL) from None
    return llguidance

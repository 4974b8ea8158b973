"""What one request may ask for besides its prompt, by the names that a caller gives: checked and put in order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgeinfer.errors import BadRequest
from edgeinfer.generation import structured, toolchoice
from edgeinfer.generation.context import Overflow, checked_overflow
from edgeinfer.tokenizer.messages import plain_mappings
from edgeinfer.types import AUTO, DRAFTERS, OFF, SamplingParams

_TAKEN = ("self", "messages", "tokenizer", "tools")  # by ChatTemplate.encode itself


@dataclass(frozen=True, slots=True)
class Options:
    params: SamplingParams = field(default_factory=SamplingParams)
    overflow: Overflow = "refuse"
    speculation: str = AUTO
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str = toolchoice.AUTO  # or none, required, or the name of one
    thoughts: int | None = None  # tokens; None: as many as the model likes
    template: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template
    grammar: str = ""

    @property
    def thoughtless(self) -> bool:
        """The answer begins at once; one that keeps to a grammar does so from its first token on."""
        return self.thoughts == 0 or bool(self.grammar) or toolchoice.forces(self.tool_choice)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Raises BadRequest that names the option, an unknown one with the nearest that is known."""
        rest = dict(given)
        structure = {name: rest.pop(name, None) for name in structured.NAMES}
        tools = plain_mappings(rest.pop("tools", None), "tools")
        wanted = [name for name, value in structure.items() if value is not None]
        choice = toolchoice.checked(rest.pop("tool_choice", toolchoice.AUTO), tools, wanted)
        return cls(
            overflow=checked_overflow(rest.pop("overflow", "refuse")),
            speculation=_speculation(rest.pop("speculation", AUTO)),
            tools=None if choice == toolchoice.NONE else tools,
            tool_choice=choice,
            thoughts=_thoughts(rest.pop("reasoning", AUTO), bool(wanted) or toolchoice.forces(choice)),
            template=_variables(rest.pop("template_options", None)),
            grammar=structured.compiled(structure),
            params=_params(rest),
        )


def _variables(value: object) -> Mapping[str, Any]:
    given = {} if value is None else value
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name not in _TAKEN for name in given):
        found = f"{given!r:.40}"
        raise BadRequest(
            f"template_options: found {found}, expected a mapping of names to values, none of {', '.join(_TAKEN)}",
            "template_options",
        )
    return given


def _speculation(value: object) -> str:
    if value is False:
        return OFF
    if isinstance(value, str) and value in (AUTO, OFF, *DRAFTERS):
        return value
    raise BadRequest(
        f"speculation={value!r:.40}: expected 'auto', False, or one of {', '.join(DRAFTERS)}", "speculation"
    )


def _thoughts(value: object, structured: bool) -> int | None:
    if value == AUTO:
        return None
    if value is False or (type(value) is int and value >= 0):
        if value and structured:
            raise BadRequest(f"reasoning={value}: an answer that keeps to a grammar has no thoughts", "reasoning")
        return int(value)
    raise BadRequest(f"reasoning={value!r:.40}: expected 'auto', False or a number of tokens", "reasoning")


def _params(options: dict[str, Any]) -> SamplingParams:
    """SamplingParams from ``params`` and single fields on top."""
    base = options.pop("params", None) or SamplingParams()
    if not isinstance(base, SamplingParams):
        raise BadRequest(f"params: found {base!r:.40}, expected SamplingParams(...)", "params")
    known = SamplingParams.names()
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise BadRequest(f"unknown option {name!r}; {hint}", name)
    return replace(base, **options)

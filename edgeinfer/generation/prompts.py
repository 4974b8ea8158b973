"""A prompt and its options as a request: text encoded, messages through the template, all of it made to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from typing_extensions import TypeIs

from edgeinfer.errors import BadRequest
from edgeinfer.generation import toolcalls, toolchoice
from edgeinfer.generation.context import fit_messages, fit_tokens
from edgeinfer.generation.options import Options
from edgeinfer.generation.reasoning import Reasoning, closing, opened_by, switched_off
from edgeinfer.generation.request import Request
from edgeinfer.tokenizer.template import ChatTemplate, Encoded, lookalike_warning
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Message

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Raw text, token ids, or chat messages."""


class Prompter:
    """Makes the requests of one model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def request(self, prompt: Prompt, options: Options, context: int) -> Request:
        """Raises BadRequest, TemplateFailed, and ContextLimit for what does not fit ``context`` and may not be cut."""
        if are_messages(prompt):
            return self._chat(prompt, options, context)
        if options.tools or options.template or options.thoughts is not None:
            raise BadRequest("tools, reasoning and template_options need chat messages, not a raw prompt", "tools")
        warnings: tuple[str, ...] = ()
        if isinstance(prompt, str) and (lookalikes := self._tokenizer.lookalikes(prompt)):
            warnings = (lookalike_warning("the prompt", lookalikes),)
        limits = (context, options.params.max_tokens)
        ids, truncated = fit_tokens(self.raw(prompt), *limits, self._tokenizer.bos_id, options.overflow)
        return Request(
            ids,
            options.params,
            truncated,
            warnings=warnings,
            grammar=options.grammar,
            speculation=options.speculation,
        )

    def ids(self, prompt: Prompt, options: Options) -> Sequence[int]:
        """The ids of a prompt, whether it fits or not."""
        return self.encoded(prompt, options).ids if are_messages(prompt) else self.raw(prompt)

    def encoded(self, messages: Sequence[Message], options: Options) -> Encoded:
        """A conversation through the template; with no thoughts allowed, the model has none to write after it."""
        template, source = options.template, self._template.source(bool(options.tools))
        if options.thoughtless:
            template = {**switched_off(source), **template}
        encoded = self._template.encode(messages, self._tokenizer, tools=options.tools, **template)
        closed = closing(encoded.text, source) if options.thoughtless else ""
        if not closed:
            return encoded
        ids = self._tokenizer.encode(closed, special=True)
        return replace(encoded, ids=[*encoded.ids, *ids], text=encoded.text + closed)

    def raw(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, add_bos=self._tokenizer.add_bos)
        return prompt

    def _chat(self, messages: Sequence[Message], options: Options, context: int) -> Request:
        encoded, truncated = fit_messages(
            messages,
            lambda part: self.encoded(part, options),
            context,
            options.params.max_tokens,
            options.overflow,
        )
        warnings = (*self._template_warnings, *encoded.warnings)
        calls = toolcalls.expected(self._template.source(True), options.tools) if options.tools else None
        if options.tools and calls is None:
            warnings += ("the chat template knows no tools; the model was not told of them",)
        opened = opened_by(encoded.text)
        forced = self._forced(options, calls)
        return Request(
            encoded.ids,
            options.params,
            truncated,
            reasoning=None if options.grammar or forced else Reasoning(opened=opened, budget=options.thoughts),
            tools=None if options.grammar else calls,
            warnings=warnings,
            grammar=options.grammar or forced,
            speculation=options.speculation,
        )

    def _forced(self, options: Options, calls: toolcalls.Tools | None) -> str:
        """The grammar of the call that has to come, or nothing."""
        if not toolchoice.forces(options.tool_choice):
            return ""
        if calls is None or not options.tools:
            raise BadRequest(
                f"tool_choice={options.tool_choice!r}: the chat template knows no tools; use a model that does",
                "tool_choice",
            )
        return toolchoice.grammar(options.tool_choice, calls, options.tools, self._tokenizer)

    @cached_property
    def _template_warnings(self) -> tuple[str, ...]:
        return self._template.drops()


def are_messages(prompt: Prompt) -> TypeIs[Sequence[Message]]:
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, Mapping) or not (hasattr(prompt, "__len__") and hasattr(prompt, "__getitem__")):
        raise BadRequest(f"prompt: found {prompt!r:.40}, expected text, a list of token ids or of messages", "prompt")
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)

"""Chat templates: a conversation in, the prompt that a model was trained on out.

Templates are Jinja2 programs from the model's file. They run in a child process under limits (``sandbox.py``), and
text from users, tools and files never becomes a control token on the way (``segments.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from edgeinfer.errors import BadRequest, TemplateFailed
from edgeinfer.tokenizer.messages import plain, plain_mappings, plain_messages
from edgeinfer.tokenizer.sandbox import Sandbox
from edgeinfer.tokenizer.segments import ControlTexts, Mask, agreed, masked, strings
from edgeinfer.types import Message

_KEY = "tokenizer.chat_template"
_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}

BUILT_IN = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "raw": "{% for message in messages %}{{ message.content }}{% endfor %}",
}
"""Templates that any model can be given, but only by name: a guessed template answers badly and says nothing."""

_SHOWN = 3  # look-alikes named in a warning, and messages warned of
_CONSTANT = re.compile(r"""(?=(['"])([\w ./:+-]{1,64})\1)""")  # looks ahead: an apostrophe in text hides none
_ATTRIBUTE = re.compile(r"\.\s*(\w+)")


class ChatTokenizer(Protocol):
    """What encoding a conversation needs of a tokenizer."""

    @property
    def control_tokens(self) -> Mapping[str, int]: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    def split(self, text: str) -> Sequence[str | int]:
        """Plain text and the ids of special tokens, in order."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text that follows a special token or begins the prompt; never a control token."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation as token ids, the text they stand for, and what a person should know about it."""

    ids: list[int]
    text: str
    warnings: tuple[str, ...] = ()


class ChatTemplate:
    """A model's chat template. Safe to use from several threads; use it as a context manager or call ``close()``."""

    def __init__(
        self,
        sources: Mapping[str, str],
        name: str = "chat template",
        special_tokens: Mapping[str, str] | None = None,
        choice: str = "",
    ) -> None:
        """``sources`` by name, the default one under ``""``. ``choice`` picks one of them, or a built-in one."""
        self._sources = sources
        self._name = name
        self._special_tokens = dict(special_tokens or {})
        self._choice = choice
        if choice and choice not in sources and choice not in BUILT_IN:
            raise BadRequest(f"no chat template {choice!r}; choose one of: {', '.join(self.names)}", "template")
        self._sandbox = Sandbox()
        self._controls: ControlTexts | None = None

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], path: Path | str, choice: str = "") -> Self:
        """The templates of a GGUF file: ``tokenizer.chat_template`` and ``tokenizer.chat_template.<name>``.

        A file without any is no error until it is asked to render; ``choice`` may name one of ``BUILT_IN`` instead.
        """
        sources = {
            key.removeprefix(_KEY).removeprefix("."): value
            for key, value in metadata.items()
            if (key == _KEY or key.startswith(f"{_KEY}.")) and isinstance(value, str) and value
        }
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        ids = {name: metadata.get(key) for name, key in _SPECIAL_TOKENS.items()}
        special = {
            name: tokens[index] for name, index in ids.items() if isinstance(index, int) and 0 <= index < len(tokens)
        }
        return cls(sources, f"chat template of {Path(path).name}", special, choice)

    @property
    def names(self) -> list[str]:
        """What can be chosen: the model's own named templates, and the built-in ones."""
        return [*(name for name in self._sources if name), *(name for name in BUILT_IN if name not in self._sources)]

    def source(self, tools: bool = False) -> str:
        """The Jinja text in use; with ``tools`` the one that the file keeps for them, as in transformers."""
        if self._choice:
            return self._sources.get(self._choice, BUILT_IN.get(self._choice, ""))
        for name in ("tool_use", "", "default") if tools else ("", "default"):
            if name in self._sources:
                return self._sources[name]
        raise TemplateFailed(
            f"{self._name}: the file has none, and guessing would give bad answers; choose one of "
            f"{', '.join(self.names)} (--template NAME), or continue plain text (--raw)"
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt as text. Further keyword arguments reach the template as they are (``enable_thinking=False``).

        Raises BadRequest for malformed messages; TemplateFailed where the template raises or exceeds a limit.
        """
        inputs = _inputs(messages, tools, documents, variables)
        scope = self._scope(inputs, add_generation_prompt)
        return self._sandbox.render(self.source(bool(tools)), [scope], self._name)[0].unwrap()

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: ChatTokenizer,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> Encoded:
        """The prompt as token ids, in which every control token was written by the template.

        For text that holds no look-alike of one, the ids are those of the rendered text with its control tokens read
        as such. The begin-of-text token is put in front if the tokenizer asks for it and the template has not.
        Raises as ``render`` does.
        """
        source = self.source(bool(tools))
        inputs = _inputs(messages, tools, documents, variables)
        controls = self._control_texts(tokenizer)
        mask = Mask(controls, [source, *strings(inputs), *self._special_tokens.values()])
        light = masked(inputs, mask.lookalikes, mask.lookalikes)
        strict = _strictly_masked(inputs, mask, source)
        scopes = [self._scope(light, add_generation_prompt), self._scope(strict, add_generation_prompt)]
        light_result, strict_result = self._sandbox.render(source, scopes, self._name)
        light_reading = mask.read(light_result.unwrap())
        if strict_result.error is not None:
            raise TemplateFailed(
                f"{strict_result.error} (with message text hidden from it, to tell text from control tokens)"
            )
        strict_reading = mask.read(strict_result.text)
        warnings = list(_lookalike_warnings(inputs, controls))
        reading = agreed(light_reading, strict_reading)
        if reading is None:
            reading = strict_reading
            warnings.append(f"{self._name}: it makes control tokens out of message text; they were kept out")
        parts = mask.parts(reading, tokenizer.split)
        return Encoded(list(_ids(parts, tokenizer)), reading.text, tuple(warnings))

    def drops(self) -> tuple[str, ...]:
        """Warnings about a template that leaves out the system message or what the user said last.

        Renders short conversations and looks for their words. A template that raises is not warned of: it says so
        itself when the time comes.
        """
        missing: dict[str, None] = {}
        for roles in (("user",), ("system", "user"), ("system", "user", "assistant", "user")):
            texts = [f"sentinel{position}{role}" for position, role in enumerate(roles)]
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            try:
                rendered = self.render(messages)
            except TemplateFailed:
                continue
            watched = {"the last user message": texts[-1]}
            if roles[0] == "system":
                watched["the system message"] = texts[0]
            missing |= {what: None for what, text in watched.items() if text not in rendered}
        return tuple(f"{self._name}: it leaves out {what}; the model will not see it" for what in missing)

    def close(self) -> None:
        """Ends the process that renders. Use afterwards raises EngineClosed."""
        self._sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scope(self, inputs: Mapping[str, Any], add_generation_prompt: bool) -> dict[str, Any]:
        return {**self._special_tokens, "add_generation_prompt": add_generation_prompt, **inputs}

    def _control_texts(self, tokenizer: ChatTokenizer) -> ControlTexts:
        controls = self._controls
        if controls is None or controls.tokens is not tokenizer.control_tokens:
            controls = self._controls = ControlTexts(tokenizer.control_tokens)
        return controls


def _inputs(messages: object, tools: object, documents: object, variables: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller gives a template, checked, as plain data."""
    return {
        **{name: plain(value, name) for name, value in variables.items()},
        "messages": plain_messages(messages),
        "tools": plain_mappings(tools, "tools"),
        "documents": plain_mappings(documents, "documents"),
    }


def _strictly_masked(inputs: Mapping[str, Any], mask: Mask, source: str) -> dict[str, Any]:
    """All text masked, but for what templates decide by: roles, options, and the words and keys that they name."""
    constants = {match[2] for match in _CONSTANT.finditer(source)}
    keys = constants.union(_ATTRIBUTE.findall(source))

    def text(value: str) -> str:
        return mask.lookalikes(value) if value in constants else mask.everything(value)

    def key(name: str) -> str:
        return mask.lookalikes(name) if name in keys else mask.everything(name)

    result = {name: masked(value, mask.lookalikes, mask.lookalikes) for name, value in inputs.items()}
    for name in ("tools", "documents"):
        result[name] = masked(inputs[name], text, key)
    result["messages"] = [
        {**masked(message, text, key), "role": mask.lookalikes(message["role"])} for message in inputs["messages"]
    ]
    return result


def _ids(parts: Sequence[str | int], tokenizer: ChatTokenizer) -> Iterator[int]:
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and parts[:1] != [bos]:
        yield bos
    for part in parts:
        if isinstance(part, int):
            yield part
        else:
            yield from tokenizer.encode(part)


def _lookalike_warnings(inputs: Mapping[str, Any], controls: ControlTexts) -> Iterator[str]:
    """One line for each message, tool or document that holds the text of a control token."""
    places = {f"messages[{index}]": message for index, message in enumerate(inputs["messages"])}
    places |= {name: value for name, value in inputs.items() if name != "messages"}
    found = {place: _lookalikes(value, controls) for place, value in places.items()}
    warned = [place for place, texts in found.items() if texts]
    for place in warned[:_SHOWN]:
        yield lookalike_warning(place, found[place])
    if len(warned) > _SHOWN:
        yield f"{len(warned) - _SHOWN} more places contain the text of control tokens: read as plain text"


def lookalike_warning(place: str, texts: Sequence[str]) -> str:
    """The line that warns of texts which only look like control tokens."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    shown = ", ".join(map(repr, texts[:_SHOWN])) + more
    return f"{place} contains {shown}: read as plain text, not as control tokens"


def _lookalikes(value: Any, controls: ControlTexts) -> list[str]:
    return list(dict.fromkeys(text for string in strings(value) for text in controls.found(string)))

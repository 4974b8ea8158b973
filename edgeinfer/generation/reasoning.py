"""Splits what a model thinks from what it answers, by the markers that it writes around its thoughts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from edgeinfer.types import ToolCall

Kind: TypeAlias = Literal["text", "reasoning", "tools"]


@dataclass(frozen=True, slots=True)
class Markers:
    """What stands around thoughts, and what may stand before the answer that follows them."""

    start: str
    end: str
    answer: str = ""


FORMATS = (
    Markers("<think>", "</think>"),  # DeepSeek-R1, Qwen3, SmolLM3, GLM, Hunyuan, Nemotron
    Markers("<thought>", "</thought>"),  # EXAONE Deep
    Markers("<seed:think>", "</seed:think>"),  # Seed-OSS
    Markers("[THINK]", "[/THINK]"),  # Magistral
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    Markers("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    Markers("<|channel>thought", "<channel|>"),  # Gemma 4
    Markers("<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant<|channel|>final<|message|>"),  # gpt-oss
    Markers("<|channel|>final<|message|>", ""),  # gpt-oss where it does not think
)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What may stand at the beginning of an answer; ``opened``: the prompt ends inside this block already.

    budget: tokens of thought after which the block is closed for the model; None: as many as it likes.
    """

    formats: tuple[Markers, ...] = FORMATS
    opened: Markers | None = None
    budget: int | None = None


SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variable that turns thinking on and off: Qwen3, GLM, SmolLM3, Gemma 4; DeepSeek, Granite."""


def opened_by(prompt: str) -> Markers | None:
    """The block that a rendered chat prompt ends inside of, where its template opened one."""
    end = prompt.rstrip()
    return next((markers for markers in FORMATS if markers.end and end.endswith(markers.start)), None)


def switched_off(template: str) -> dict[str, bool]:
    """The variables that keep the model of this template from thinking, where it knows such."""
    return {name: False for name in SWITCHES if re.search(rf"\b{name}\b", template)}


def closing(prompt: str, template: str) -> str:
    """What has to follow a rendered prompt for the model to answer without a thought: an empty block where the
    template opened one, or knows the markers and has written none; else nothing."""
    if markers := opened_by(prompt):
        return f"\n{markers.end}\n\n"
    first = FORMATS[0]
    if first.end in template and not prompt.rstrip().endswith(first.end):
        return f"{first.start}\n\n{first.end}\n\n"
    return ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one kind; ``end`` counts the characters up to it, markers included."""

    text: str
    kind: Kind
    end: int
    calls: tuple[ToolCall, ...] = ()


class Splitter:
    """Cuts streamed text into thoughts and answer.

    A block is recognized only as the very first thing of an answer (after white space); a start marker further down
    is ordinary text. White space beside a marker belongs to it. With no ``Reasoning`` everything is answer.
    """

    def __init__(self, reasoning: Reasoning | None) -> None:
        self._starts = reasoning.formats if reasoning and not reasoning.opened else ()
        self._open = reasoning.opened if reasoning else None
        self._skipping = self._open is not None  # white space after a marker
        self._answer = ""  # what may stand before the answer and is none of it
        self._held = ""
        self._consumed = 0

    @property
    def open(self) -> Markers | None:
        """The markers of the block that is being written."""
        return self._open

    def push(self, piece: str) -> list[Segment]:
        """The segments that are settled now, in order; none is empty."""
        self._held += piece
        segments: list[Segment] = []
        if self._starts and not self._find_start():
            return segments
        if self._open and not self._think(self._open, segments):
            return segments
        self._skip()
        if self._answer and not self._find_answer():
            return segments
        self._emit(len(self._held), segments)
        return segments

    def finish(self) -> list[Segment]:
        """What is still held back, when no more text comes."""
        segments: list[Segment] = []
        self._emit(len(self._held), segments)
        return segments

    def _find_start(self) -> bool:
        """Whether it is settled how the answer begins."""
        body = self._held.lstrip()
        for markers in self._starts:
            if body.startswith(markers.start):
                self._open, self._starts, self._skipping = markers if markers.end else None, (), True
                self._drop(len(self._held) - len(body) + len(markers.start))
                return True
        if any(markers.start.startswith(body) for markers in self._starts):
            return False
        self._starts = ()
        return True

    def _think(self, markers: Markers, segments: list[Segment]) -> bool:
        """Whether the block has ended."""
        self._skip()
        place = self._held.find(markers.end)
        if place < 0:
            self._emit(len(self._held) - overlap(self._held, markers.end), segments)
            return False
        self._emit(place, segments)
        self._drop(len(markers.end))
        self._open, self._skipping, self._answer = None, True, markers.answer
        return True

    def _find_answer(self) -> bool:
        """Whether it is settled what stands before the answer."""
        if self._held != self._answer and self._answer.startswith(self._held):
            return False
        if self._held.startswith(self._answer):
            self._drop(len(self._answer))
        self._answer = ""
        return True

    def _skip(self) -> None:
        if self._skipping and self._held:
            body = self._held.lstrip()
            self._drop(len(self._held) - len(body))
            self._skipping = not body

    def _drop(self, count: int) -> None:
        self._held = self._held[count:]
        self._consumed += count

    def _emit(self, count: int, segments: list[Segment]) -> None:
        if count:
            text = self._held[:count]
            self._drop(count)
            segments.append(Segment(text, "reasoning" if self._open else "text", self._consumed))


def overlap(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that begins ``marker``."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:size])), 0)

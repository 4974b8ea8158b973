"""Splits what a model thinks from what it answers, by the markers that it writes around its thoughts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markers:
    start: str
    end: str


FORMATS = (
    Markers("<think>", "</think>"),  # DeepSeek-R1, Qwen3, SmolLM3, GLM, Hunyuan, Nemotron
    Markers("<thought>", "</thought>"),  # EXAONE Deep
    Markers("<seed:think>", "</seed:think>"),  # Seed-OSS
    Markers("[THINK]", "[/THINK]"),  # Magistral
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    Markers("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What may stand at the beginning of an answer; ``opened``: the prompt ends inside this block already."""

    formats: tuple[Markers, ...] = FORMATS
    opened: Markers | None = None


def reasoning_format(prompt: str) -> Reasoning:
    """What to expect of the answer to a rendered chat prompt, whose template may have opened the block."""
    end = prompt.rstrip()
    return Reasoning(opened=next((markers for markers in FORMATS if end.endswith(markers.start)), None))


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one kind; ``end`` counts the characters up to it, markers included."""

    text: str
    thinking: bool
    end: int


class Splitter:
    """Cuts streamed text into thoughts and answer.

    A block is recognized only as the very first thing of an answer (after white space); a start marker further down
    is ordinary text. White space beside a marker belongs to it. With no ``Reasoning`` everything is answer.
    """

    def __init__(self, reasoning: Reasoning | None) -> None:
        self._starts = reasoning.formats if reasoning and not reasoning.opened else ()
        self._open = reasoning.opened if reasoning else None
        self._skipping = self._open is not None  # white space after a marker
        self._held = ""
        self._consumed = 0

    @property
    def thinking(self) -> bool:
        return self._open is not None

    def push(self, piece: str) -> list[Segment]:
        """The segments that are settled now, in order; none is empty."""
        self._held += piece
        segments: list[Segment] = []
        if self._starts and not self._find_start():
            return segments
        if self._open and not self._think(self._open, segments):
            return segments
        self._skip()
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
                self._open, self._starts, self._skipping = markers, (), True
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
            self._emit(len(self._held) - _overlap(self._held, markers.end), segments)
            return False
        self._emit(place, segments)
        self._drop(len(markers.end))
        self._open, self._skipping = None, True
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
            segments.append(Segment(text, self.thinking, self._consumed))


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that begins ``marker``."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:size])), 0)

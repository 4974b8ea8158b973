"""Finds tool calls in an answer while it is written."""

from __future__ import annotations

from edgeinfer.generation.reasoning import Segment, overlap
from edgeinfer.generation.toolcalls import Tools, identified, named


class ToolFinder:
    """Cuts the text of an answer into text and calls. White space beside a call belongs to it.

    What looks like a call and does not parse stays text. With no ``Tools`` everything is text.
    """

    def __init__(self, tools: Tools | None) -> None:
        self._format = named(tools.format) if tools else None
        self._types = tools.types if tools else {}
        self._held = ""
        self._end = 0  # characters of the whole answer up to the end of what is held
        self._start = ""  # of the call that is being written
        self._inside = False
        self._began = False  # text was written
        self._count = 0

    def push(self, segment: Segment) -> list[Segment]:
        """The segments that are settled now, in order."""
        if self._format is None:
            return [segment]
        self._held += segment.text
        self._end = segment.end
        found: list[Segment] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Segment]:
        """What is still held back, when no more text comes. A call that the answer ends with ends with it."""
        found: list[Segment] = []
        if self._inside:
            self._call(len(self._held), len(self._held), found)
        self._emit(len(self._held), found)
        return found

    def _step(self, found: list[Segment]) -> bool:
        """Whether there may be more to find."""
        assert self._format is not None
        if not self._inside:
            return self._find_start(found)
        place = self._held.find(self._format.end, len(self._start)) if self._format.end else -1
        if place < 0:
            return False
        self._call(place, place + len(self._format.end), found)
        return True

    def _find_start(self, found: list[Segment]) -> bool:
        assert self._format is not None
        if self._count:  # white space after a call
            self._drop(len(self._held) - len(self._held.lstrip()))
        body = self._held.lstrip()
        if not self._began and body and body[0] in self._format.bare:
            self._enter(len(self._held) - len(body), "", found)
            return True
        starts = [(self._held.find(start), start) for start in self._format.starts if start in self._held]
        if starts:
            place, start = min(starts)
            self._enter(place, start, found)
            return True
        partial = max((overlap(self._held, start) for start in self._format.starts), default=0)
        kept = self._held[: len(self._held) - partial].rstrip()
        self._emit(len(kept), found)
        return False

    def _enter(self, place: int, start: str, found: list[Segment]) -> None:
        before = self._held[:place].rstrip()
        self._emit(len(before), found)
        self._drop(place - len(before))
        self._inside, self._start = True, start

    def _call(self, body_end: int, end: int, found: list[Segment]) -> None:
        """Takes ``end`` characters as a call, or as text where they are none."""
        assert self._format is not None
        self._inside = False
        try:
            calls = self._format.parse(self._held[len(self._start) : body_end], self._types)
        except (ValueError, RecursionError):
            self._emit(end, found)
            return
        raw = self._held[:end]
        self._drop(end)
        found.append(Segment(raw, "tools", self._end - len(self._held), identified(calls, self._count)))
        self._count += len(calls)

    def _drop(self, count: int) -> None:
        self._held = self._held[count:]

    def _emit(self, count: int, found: list[Segment]) -> None:
        if count:
            text = self._held[:count]
            self._drop(count)
            self._began = True
            found.append(Segment(text, "text", self._end - len(self._held)))

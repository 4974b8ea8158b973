"""Stop strings, found wherever the borders between tokens fall."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Lets text through up to the first stop string, and holds back what may be the beginning of one.

    The first stop is the one that is complete first; of those complete at the same character, the longest. So the
    result does not depend on how the text is cut into pieces. One Knuth–Morris–Pratt automaton runs per string:
    the time is linear in the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = [(stop, _failures(stop)) for stop in sorted(set(stops), key=len, reverse=True)]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, piece: str) -> str:
        """The text that is settled now. After ``found`` is set nothing more comes."""
        if self.found is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        for place, character in enumerate(piece, start=len(self._held) + 1):
            stop = self._advance(character)
            if stop is not None:
                self.found, self._held = stop, ""
                return text[: place - len(stop)]
        settled = len(text) - max(self._matched)
        self._held = text[settled:]
        return text[:settled]

    def finish(self) -> str:
        """What is still held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        for index, (stop, failures) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = failures[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                return stop
            self._matched[index] = matched
        return None


def _failures(pattern: str) -> list[int]:
    """For each prefix of the pattern the length of its longest proper suffix that is a prefix too."""
    failures = [0] * len(pattern)
    matched = 0
    for place in range(1, len(pattern)):
        while matched and pattern[matched] != pattern[place]:
            matched = failures[matched - 1]
        if pattern[matched] == pattern[place]:
            matched += 1
        failures[place] = matched
    return failures

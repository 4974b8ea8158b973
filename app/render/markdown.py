"""Markdown to lines. A document that grows is parsed from its last block on, and laid out block by block."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from edgeinfer.app.render.blocks import block_lines
from edgeinfer.app.render.lines import Line, Text, cells, wrap

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

LONGEST = 8000
"""Characters of one paragraph; a longer one is shown as it is written, which takes no time to parse."""


class Block:
    """A part of a document, from one top-level element; laid out when it is first looked at."""

    def __init__(self, source: str, node: SyntaxTreeNode | None, last: bool = False) -> None:
        self.source = source
        self._node = node
        self._last = last  # it may grow
        self._lines: list[Line] = []
        self._width = 0
        self._height = 0

    def lines(self, width: int) -> list[Line]:
        if self._width != width or not self._lines:
            node = self._node
            self._lines = wrap(Text(self.source), width) if node is None else block_lines(node, width, self._last)
            self._width, self._height = width, len(self._lines)
        return self._lines

    def height(self, width: int) -> int:
        """Rows, as far as they are known; otherwise a guess."""
        if self._width == width:
            return self._height
        return sum(1 + cells(line) // max(1, width) for line in self.source.split("\n"))

    def forget(self) -> None:
        """Gives the lines up; the height stays known."""
        self._lines = []

    def code(self) -> list[str]:
        """The blocks of code in it, from the first to the last."""
        if self._node is None:
            return []
        nodes = self._node.walk()
        return [node.content.removesuffix("\n") for node in nodes if node.type in ("fence", "code_block")]


class Document:
    """A text that may grow at its end. What was laid out of a block stays while that block stays the same."""

    def __init__(self, source: str = "") -> None:
        self.source = ""
        self.blocks: list[Block] = []
        self._tail = ""  # from here on the blocks may still change: the last ``_open`` of them
        self._open = 0
        self.append(source)

    def append(self, text: str) -> None:
        """Adds text; only the last block is parsed again, or two where the last one's first line is not whole yet."""
        if not text:
            return
        self.source += text
        del self.blocks[len(self.blocks) - self._open :]
        blocks, start, self._open = _parsed(self._tail + text)
        self.blocks += blocks
        self._tail = (self._tail + text)[start:]

    def finish(self) -> None:
        """The text is whole: the last block is laid out for good, and references that came late are resolved."""
        if "]:" in self.source:
            self.blocks, *_ = _parsed(self.source)
        if self.blocks:
            self.blocks[-1] = Block(self.blocks[-1].source, self.blocks[-1]._node)


def _parsed(source: str) -> tuple[list[Block], int, int]:
    """The blocks of a source, the character from which on more text may change them, and how many begin there.

    A first line that is not whole yet may turn out to go on with the block before it. Blanks are one empty block.
    """
    if len(source) > LONGEST and "\n\n" not in source and "\n" not in source[:-LONGEST]:
        return [Block(source, None, last=True)], 0, 1
    from markdown_it.tree import SyntaxTreeNode

    lines = source.split("\n")
    nodes = SyntaxTreeNode(_parser().parse(source)).children
    blocks: list[Block] = []
    starts = [node.map[0] if node.map else 0 for node in nodes] + [len(lines)]
    for index, node in enumerate(nodes):
        part = "\n".join(lines[starts[index] : starts[index + 1]])
        literal = node.type == "paragraph" and len(part) > LONGEST
        blocks.append(Block(part.rstrip("\n"), None if literal else node, last=index == len(nodes) - 1))
    if not nodes:
        return [Block("", None, last=True)], 0, 1
    open_ = 2 if len(nodes) > 1 and starts[-2] == len(lines) - 1 else 1
    return blocks, sum(len(line) + 1 for line in lines[: starts[-1 - open_]]), open_


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

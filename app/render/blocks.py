"""The elements of Markdown, each as lines; rows of a table say which function draws which."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeinfer.app.render.code import code_lines
from edgeinfer.app.render.lines import Line, Run, Text, cells, wrap

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

BLANK = Line()


def block_lines(node: SyntaxTreeNode, width: int, growing: bool = False) -> list[Line]:
    """The lines of one block at most ``width`` cells wide."""
    if node.type in ("fence", "code_block"):
        return _code(node, width, growing)
    draw = _DRAWN.get(node.type, _children)
    return draw(node, max(width, 4))


def _children(node: SyntaxTreeNode, width: int, gap: bool = True) -> list[Line]:
    lines: list[Line] = []
    for child in node.children:
        if lines and gap:
            lines.append(BLANK)
        lines += block_lines(child, width)
    return lines


def _paragraph(node: SyntaxTreeNode, width: int) -> list[Line]:
    return wrap(inline(node), width)


def _heading(node: SyntaxTreeNode, width: int) -> list[Line]:
    return wrap(inline(node, f"heading heading-{node.tag[1:]}"), width)


def _code(node: SyntaxTreeNode, width: int, growing: bool) -> list[Line]:
    words = node.info.split() if node.type == "fence" else []
    language = words[0] if words else ""
    label = Line((Run(f" {language}", "code-label"),), "code-label", lead=1 + len(language))
    code = node.content.removesuffix("\n").expandtabs(4)
    return [label, *code_lines(code, language.lower(), width, growing)]


def _quote(node: SyntaxTreeNode, width: int) -> list[Line]:
    return [line.behind(Run("▌ ", "quote")) for line in _children(node, width - 2)]


def _list(node: SyntaxTreeNode, width: int) -> list[Line]:
    """Items behind their markers; a blank line between those that hold more than a line each."""
    loose = any(child.type == "paragraph" and not child.hidden for item in node.children for child in item.children)
    first = int(node.attrs.get("start", 1))
    ordered = node.type == "ordered_list"
    markers = [f"{first + index}. " if ordered else "• " for index in range(len(node.children))]
    indent = max(map(len, markers))
    lines: list[Line] = []
    for marker, item in zip(markers, node.children, strict=True):
        if lines and loose:
            lines.append(BLANK)
        inside = _children(item, width - indent, gap=loose) or [BLANK]
        lines.append(inside[0].behind(Run(f"{marker:>{indent}}", "marker"), of_text=True))
        lines += [line.behind(Run(" " * indent)) for line in inside[1:]]
    return lines


def _rule(node: SyntaxTreeNode, width: int) -> list[Line]:
    return [Line((Run("─" * width, "rule"),))]


def _table(node: SyntaxTreeNode, width: int) -> list[Line]:
    """Cells in columns; the widest column gives way until all fit."""
    rows = [row for part in node.children for row in part.children]
    texts = [[inline(cell, "heading" if cell.type == "th" else "") for cell in row.children] for row in rows]
    columns = max(map(len, texts))
    widths = [max(_widest(row[i]) for row in texts if i < len(row)) for i in range(columns)]
    room = max(columns, width - 3 * (columns - 1))
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    lines: list[Line] = []
    for number, row in enumerate(texts):
        cells_of_row = [wrap(text, size) for text, size in zip(row, widths, strict=False)]
        for level in range(max(map(len, cells_of_row), default=0)):
            runs: list[Run] = []
            for index, (cell, size) in enumerate(zip(cells_of_row, widths, strict=False)):
                line = cell[level] if level < len(cell) else BLANK
                runs += [Run(" │ ", "rule")] if index else []
                runs += [*line.runs, Run(" " * max(0, size - cells(line.text)))]
            lines.append(Line(tuple(runs)))
        if number == 0:
            lines.append(Line((Run("─┼─".join("─" * size for size in widths), "rule"),)))
    return lines


def _widest(text: Text) -> int:
    return max(1, *map(cells, text.plain.split("\n")))


_DRAWN: dict[str, Callable[[SyntaxTreeNode, int], list[Line]]] = {
    "paragraph": _paragraph,
    "heading": _heading,
    "blockquote": _quote,
    "bullet_list": _list,
    "ordered_list": _list,
    "hr": _rule,
    "table": _table,
}

_STYLES = {"strong": "strong", "em": "em", "s": "strike", "link": "link"}


def inline(node: SyntaxTreeNode, style: str = "") -> Text:
    """What stands in a paragraph, a heading or a cell. A link shows where it leads: nothing hides behind its words."""
    text = Text()
    for child in node.children:
        _add(text, child, style)
    return text


def _add(text: Text, node: SyntaxTreeNode, style: str) -> None:
    match node.type:
        case "softbreak" | "hardbreak":
            text.add("\n")
        case "code_inline":
            text.add(node.content, f"{style} inline-code".strip())
        case "image":
            text.add(f"{node.content or 'image'} ({node.attrs.get('src', '')})", f"{style} url".strip())
        case "inline" | "strong" | "em" | "s" | "link":
            inner = f"{style} {_STYLES.get(node.type, '')}".strip()
            for child in node.children:
                _add(text, child, inner)
            target = str(node.attrs.get("href", "")) if node.type == "link" else ""
            if target and target != "".join(child.content for child in node.children):
                text.add(f" ({target})", f"{style} url".strip())
        case _:
            text.add(node.content, style)

"""Text to lines: nothing is lost, nothing is wider than it may be, and growing gives what the whole gives."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult

from edgeinfer.app.render.entry import Entry, Said, Told
from edgeinfer.app.render.lines import Text, wrap
from edgeinfer.app.render.markdown import LONGEST, Document
from edgeinfer.app.widgets.transcript import KEPT, STRIPS, STYLES, Transcript
from edgeinfer.sanitize import sanitize
from tests.app.terminal import MARKDOWN
from tests.app.test_chat import HOSTILE

PIECES = [*HOSTILE.values(), MARKDOWN, "\n\n", "\n", "- a\n  - b\n", "1. x\n", "> q\n", "    code\n", "===\n",
          "|-|-|\n", "```\n", "~~~py\n", "[a]: b\n", "*a **b*", "# h\n", "word "]  # fmt: skip


def lines(document: Document, width: int) -> list[str]:
    return [line.text for block in document.blocks for line in block.lines(width)]


@pytest.mark.parametrize("width", [12, 78])
def test_a_growing_document_ends_as_the_whole(width: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        source = sanitize("".join(chance.choices(PIECES, k=chance.randint(1, 8))))
        growing, start = Document(), 0
        while start < len(source):
            end = start + chance.randint(1, 30)
            growing.append(source[start:end])
            lines(growing, width)
            start = end
        growing.finish()
        whole = Document(source)
        whole.finish()
        assert growing.source == source
        assert lines(growing, width) == lines(whole, width), repr(source)
        assert all(cell_len(line.rstrip()) <= width for line in lines(whole, width)), repr(source)  # blanks may


def test_a_line_that_turns_out_to_go_on_with_the_block_before_it_does() -> None:
    growing, whole = Document(), Document("===\n1. x\n*a **b*")
    for piece in ("===\n1", ". x\n*", "a **b*"):
        growing.append(piece)
    growing.finish()
    whole.finish()
    assert lines(growing, 78) == lines(whole, 78)


def test_wrapping_loses_no_character() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(200):
        text = "".join(chance.choices(["a", "bb ", "漢", "👩‍👩‍👧", "e\u0301", " ", "\n", "long" * 9], k=40))
        rows = wrap(Text(text), chance.randint(2, 30))
        assert "".join(row.text + ("" if row.joins else "\n") for row in rows) == text + "\n"


def test_a_paragraph_without_an_end_is_shown_as_it_is() -> None:
    document = Document("*" * (LONGEST * 3))
    assert "".join(lines(document, 50)) == "*" * (LONGEST * 3)


class Page(App[None]):
    CSS_PATH = str(Path(__file__).parents[2] / "app" / "screens" / "chat.tcss")

    def compose(self) -> ComposeResult:
        yield Transcript()


def test_five_hundred_turns_are_scrolled_and_take_no_more_room_than_the_view() -> None:
    """Over 100,000 tokens: what is laid out is bounded, and every row can be reached."""

    async def run() -> None:
        app = Page()
        async with app.run_test(size=(80, 24)) as pilot:
            transcript = app.query_one(Transcript)
            turns = [
                entry for n in range(500) for entry in (Said(f"question {n}"), Told(f"answer {n}\n\n" + MARKDOWN * 7))
            ]
            assert sum(len(entry.copied) for entry in turns) > 400_000
            transcript.show(turns)
            assert len(transcript._laid) < 20  # only the end was laid out
            await pilot.pause()
            assert transcript.scroll_y > 40_000
            seen = 0
            while transcript.scroll_y > 0 and seen < 3000:
                transcript.scroll_to(y=max(0, transcript.scroll_y - 300), animate=False, immediate=True)
                seen += 1
                assert len(transcript._laid) <= 2 * KEPT + 40
                assert len(transcript._strips) <= STRIPS + 1
            await pilot.pause()
            strips = app.screen._compositor.render_strips()
            assert any("question 0" in "".join(segment.text for segment in strip) for strip in strips)
            kept = sum(
                bool(block._lines) for e in turns if isinstance(e, Told) and e._document for block in e.document.blocks
            )
            assert kept < 60 * 2 * KEPT

    asyncio.run(run())


def test_every_style_that_lines_use_is_one_of_the_sheet() -> None:
    used = {
        style
        for text in (*HOSTILE.values(), MARKDOWN, "> q\n\n---\n\n~~s~~ [a](b) ![c](d)\n\n###### h")
        for block in Document(text).blocks
        for line in block.lines(60)
        for run in line.runs
        for style in f"{run.style} {line.fill}".split()
    }
    sheet = (Path(__file__).parents[2] / "app" / "screens" / "chat.tcss").read_text()
    assert used <= set(STYLES)
    assert [name for name in STYLES if f"transcript--{name} " not in sheet] in (
        [],
        ["heading-4", "heading-5", "heading-6"],
    )


def test_what_is_drawn_has_no_gaps_and_no_row_is_missing() -> None:
    """Heights are guesses until something is laid out; rows that were drawn meanwhile stand in the right place."""

    def rows(app: Page) -> list[str]:
        strips = app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).strip() for strip in strips]

    async def run() -> None:
        app = Page()
        async with app.run_test(size=(60, 20)) as pilot:
            transcript = app.query_one(Transcript)
            entries: list[Entry] = []
            for turn in range(8):
                reply = Told("```py\ncode\n```\n\nafter\n\n" * 9 + f"end {turn}")
                reply.foot = "a figure · another figure · a third figure of them"
                entries += [Said(f"question {turn}", notes=["‹ 1/2 ›"]), reply]
            for place in (None, 4, 0, 15, 7):
                transcript.show(entries)
                if place is not None:
                    transcript.choose(place)
                await pilot.pause()
                assert transcript.following == (place is None)
                shown = rows(app)
                assert all(shown[i] or shown[i + 1] for i in range(18)), shown
                if transcript.following:
                    assert shown[-1] == "a figure · another figure · a third figure of them"
                elif place % 2 == 0:
                    assert any(f"question {place // 2}" in row for row in shown)

    asyncio.run(run())


def test_figures_below_a_reply_are_not_broken_in_two() -> None:
    reply = Told("x")
    reply.foot = "2,048 tokens · 251 tok/s · first after 0.05 s · 8.3 tokens/step"
    reply.show()
    reply.settle(40, 0, 10)
    found = [reply.line(40, row).text for row in range(reply.height(40))]
    assert found == ["x", "", "2,048 tokens · 251 tok/s", "first after 0.05 s · 8.3 tokens/step", ""]

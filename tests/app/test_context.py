"""When a conversation does not fit: longer contexts, tighter formats of keys and values with their price."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.app import ChatApp
from edgeinfer.app.engine import Wanted, open_model
from edgeinfer.app.live import Live
from edgeinfer.app.ways import Lengthen, described, lengthenings
from edgeinfer.library import KVChoice
from edgeinfer.types import ReasoningDelta, TextDelta
from tests.app.world import chat, screen, until


def choice(name: str, longest: int, ratio: float, kl: float | None = None) -> KVChoice:
    return KVChoice(name, name == "k8v4", ratio, longest, kl, "measured on SmolLM2-135M" if kl is not None else "")


FORMATS = [
    choice("exact", 3000, 1.0, 0.0),
    choice("k8v8", 6000, 0.53, 0.0002),
    choice("k8v4", 9000, 0.4, 0.007),
    choice("k4v4", 14000, 0.28, 0.056),
    choice("k3v3", 20000, 0.22),
]


@pytest.mark.parametrize(
    ("kv", "needed", "found"),
    [
        ("exact", 2000, [(3000, ""), (4096, "k8v8"), (4096, "k8v4"), (4096, "k4v4")]),
        ("exact", 3000, [(4096, "k8v8"), (4096, "k8v4"), (4096, "k4v4")]),
        ("k8v4", 8200, [(9000, ""), (14000, "k4v4"), (16384, "k3v3")]),
        ("k8v4", 12000, [(14000, "k4v4"), (16384, "k3v3")]),
        ("k3v3", 30000, []),
    ],
)
def test_the_present_format_comes_first_and_then_tighter_ones(
    kv: str, needed: int, found: list[tuple[int, str]]
) -> None:
    ways = lengthenings(FORMATS, kv, needed, 32768)
    assert [(way.context, way.kv) for way, _ in ways] == found
    assert all(way.context > needed for way, _ in ways)


def test_a_backend_with_one_format_goes_as_far_as_its_model_was_trained() -> None:
    assert lengthenings([], "exact", 5000, 8192) == [(Lengthen(8192), None)]
    assert lengthenings([], "exact", 8192, 8192) == []


def test_a_way_says_what_it_saves_and_costs() -> None:
    assert described(Lengthen(9000), None, FORMATS[2]) == "Load the model with 9,000 tokens of context"
    assert described(Lengthen(14000, "k4v4"), FORMATS[3], FORMATS[2]) == (
        "14,000 tokens with KV k4v4: 28% of exact memory, not 40%; KL 0.056"
    )
    assert described(Lengthen(16384, "k3v3"), FORMATS[4], None) == (
        "16,384 tokens with KV k3v3: 22% of exact memory; KL not measured"
    )


@pytest.mark.real_model
def test_a_tighter_format_is_taken_and_the_message_answered(smollm2_path: Path, tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.engine.llm, 120)
        app.chat.prompt.write("Which animal is it? " + "The dog is brown. " * 90)
        await pilot.press("enter")
        await until(pilot, lambda: "with KV k4v4" in screen(app), 60)
        words = " ".join(screen(app).split())
        assert "Load the model with 2,048 tokens of context" in words
        assert "2,048 tokens with KV k4v4: 27% of exact memory, not 39%; KL 0.056" in words
        assert "KL nats a token, measured on SmolLM2-135M" in words
        names = [option.id for option in app.screen.query_one("#ways")._options]  # type: ignore[attr-defined]
        await pilot.press(*["down"] * names.index("longer-k4v4"), "enter")
        await until(pilot, lambda: not app.chat.turns.busy, 120)
        assert app.engine.llm is not None
        assert (app.engine.llm.info.kv, app.engine.llm.info.context) == ("k4v4", 2048)
        assert "dog" in app.session.path[-1].text.lower()
        assert not app.session.path[-1].stats.truncated  # type: ignore[union-attr]

    chat(open_model, tmp_path / "chats.db", script, (100, 30), wanted=Wanted(str(smollm2_path), context=256))


def test_tokens_of_a_step_are_counted_while_a_reply_is_made() -> None:
    now = 0.0
    live = Live(lambda: now)
    assert live.tokens_per_step == 0
    for step, tokens in ((3, 1), (4, 1), (5, 1), (5, 2), (5, 1), (6, 4)):
        live.count(TextDelta("x" * tokens, tuple(range(tokens)), step=step))
        now += 0.1
    assert live.tokens_per_step == pytest.approx(9 / 3)
    now += 1.0  # only the last second counts
    assert live.tokens_per_step == 0
    for step in (7, 9):  # one event of two steps, whose characters ended late
        live.count(ReasoningDelta("xy", (1, 2), step=step))
        now += 0.1
    assert live.tokens_per_step == 1

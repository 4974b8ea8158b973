"""The user's TOML files: what they may say, and that every mistake in them costs a line and names it."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest

from edgeinfer.app.actions import ACTIONS
from edgeinfer.app.config import sampling
from edgeinfer.app.config.document import Document, keep
from edgeinfer.app.config.preferences import AUTO, Preferences, load_preferences
from edgeinfer.app.config.themes import load_themes
from edgeinfer.catalog import catalogue
from edgeinfer.errors import BadRequest, NotSaved
from edgeinfer.types import SamplingParams


def load(folder: Path) -> Preferences:
    return load_preferences(folder, [action.name for action in ACTIONS])


def test_nothing_set_is_nothing_wrong(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert (found.theme, found.preset, found.params, found.keys, found.problems) == ("", AUTO, {}, {}, [])


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("qwen3-4b", "qwen3"), ("Qwen3-0.6B-Q8_0", "qwen3"), ("Qwen2.5-0.5B-Instruct-Q4_K_M", "qwen2.5"),
        ("hf:bartowski/Llama-3.2-1B-Instruct-GGUF", "llama3"), ("gemma-3-1b-it", "gemma3"), ("smollm2-135m", "smollm2"),
        ("DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1"), ("mistral-7b", None), ("", None),
    ],
)  # fmt: skip
def test_the_family_of_a_model_chooses_its_preset(tmp_path: Path, model: str, preset: str | None) -> None:
    found = load(tmp_path).preset_for(model)
    assert (found.name if found else None) == preset


def test_every_preset_is_one_that_the_library_takes(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert found.presets
    for preset in found.presets.values():
        SamplingParams(**preset.params)
        assert preset.about
    assert any(found.preset_for(name) for name in catalogue())


def test_what_is_set_by_hand_goes_before_the_preset(tmp_path: Path) -> None:
    (tmp_path / "presets.toml").write_text('[mine]\nsystem = "Rhyme."\ntemperature = 1.5\ntop_k = 7\n')
    (tmp_path / "chat.toml").write_text('preset = "mine"\n[sampling]\ntop_k = 9\n')
    found = load(tmp_path)
    assert not found.problems
    assert found.sampling_for("anything") == {"temperature": 1.5, "top_k": 9}
    assert found.system_for("anything") == "Rhyme."


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("chat.toml", 'theme = "x"\nthem = 1\n', "chat.toml, line 2: unknown key 'them'; did you mean 'theme'?"),
        ("chat.toml", "\n\ntheme = 7\n", "chat.toml, line 3: theme = 7; expected a text"),
        ("chat.toml", 'preset = "qwen"\n', "chat.toml, line 1: no preset 'qwen'; did you mean"),
        ("chat.toml", "[sampling]\n\ntop_p = 3\n", "chat.toml, line 3: top_p=3: expected 0 to 1"),
        ("chat.toml", "[sampling]\ntop_q = 3\n", "chat.toml, line 2: unknown key 'top_q'; did you mean 'top_p'?"),
        ("chat.toml", "sampling = 3\n", "chat.toml, line 1: expected a table"),
        ("chat.toml", "a = 1\nb = \n", "chat.toml, line 2: "),
        ("chat.toml", '"""', "chat.toml, line 1"),
        ("chat.toml", "a = " + "[" * 2000, "chat.toml"),
        (
            "keys.toml",
            'retry = "ctrl+t"\nretri = "x"\n',
            "keys.toml, line 2: unknown key 'retri'; did you mean",
        ),
        ("keys.toml", "retry = 5\n", "keys.toml, line 1: retry = 5; expected a key"),
        ("keys.toml", 'retry = "ctrl + t"\n', "keys.toml, line 1"),
        ("presets.toml", "[a]\ntemperature = 1\n[b]\ntemperature = -1\n", "presets.toml, line 4: temperature=-1"),
        ("presets.toml", "[a]\nfamilies = 3\n", "presets.toml, line 2: families"),
        ("presets.toml", "a = 3\n", "presets.toml, line 1: a: expected a table"),
        ("presets.toml", "[a]\nsystem = 3\n", "presets.toml, line 2: system"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, file: str, text: str, problem: str) -> None:
    (tmp_path / file).write_text(text)
    [told] = load(tmp_path).problems
    assert problem in told
    assert "\n" not in told


def test_a_mistake_costs_no_more_than_itself(tmp_path: Path) -> None:
    (tmp_path / "chat.toml").write_text('theme = "nord"\nwrong = 1\n[sampling]\ntop_k = "many"\ntemperature = 0.5\n')
    (tmp_path / "keys.toml").write_bytes(b"\xff\xfe")
    found = load(tmp_path)
    assert len(found.problems) == 3
    assert (found.theme, found.params) == ("nord", {"temperature": 0.5})


def test_themes_of_ours_and_of_the_user(tmp_path: Path) -> None:
    ours, problems = load_themes(tmp_path)
    assert set(ours) == {"edgeinfer-dark", "edgeinfer-light", "edgeinfer-colour-blind"}
    assert not problems
    folder = tmp_path / "themes"
    folder.mkdir()
    (folder / "sea.toml").write_text('dark = true\nprimary = "#008080"\nbakground = "#000"\nerror = "reddish"\n')
    (folder / "none.toml").write_text('secondary = "red"\n')
    (folder / "broken.toml").write_text("primary = \n")
    themes, problems = load_themes(tmp_path)
    assert set(themes) - set(ours) == {"sea"}
    assert [problem.partition(":")[0] for problem in problems] == [
        "themes/broken.toml, line 1", "themes/none.toml, line 1", "themes/sea.toml, line 3", "themes/sea.toml, line 4",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sampling.EXPLAINED)
def test_every_figure_is_explained_and_read_as_its_kind(name: str) -> None:
    default = sampling.default(name)
    assert len(sampling.EXPLAINED[name]) < 100
    if default is not None:
        assert sampling.read(name, str(default)) == default
    assert sampling.read(name, " ") is None
    for text in ("x", "nan", "1e999"):
        with pytest.raises(BadRequest):
            sampling.read(name, text)


def test_keeping_a_value_leaves_every_other_line(tmp_path: Path) -> None:
    """Any series of changes gives what a dictionary would hold, and comments stay."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    file = tmp_path / "chat.toml"
    file.write_text(
        '# mine\ntheme = "a" # and this\n\nlist = [\n  1,\n]\n[other]\nx = 1\n[sampling]\n# here\ntop_k = 3\n'
    )
    twin: dict[str, dict[str, object]] = {"": {"theme": "a", "list": [1]}, "other": {"x": 1}, "sampling": {"top_k": 3}}
    for _ in range(300):
        table = rng.choice(["", "sampling", "new"])
        key = rng.choice(["theme", "list", "top_k", "temperature", "an odd key", "x.y"])
        value = rng.choice([None, 1, 2.5, True, "text", 'a "quote" \\ \n line\x7f', "宽 👩‍👩‍👧"])
        keep(file, key, value, table)
        if value is None:
            twin.get(table, {}).pop(key, None)
        else:
            twin.setdefault(table, {})[key] = value
        found = tomllib.loads(file.read_text())
        for name, row in twin.items():
            values = found if not name else found.get(name, {})
            assert {one: values[one] for one in values if not isinstance(values[one], dict)} == row
    assert "# mine" in file.read_text()
    assert "# here" in file.read_text()


def test_a_file_with_a_mistake_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "chat.toml"
    file.write_text("theme = \n")
    with pytest.raises(NotSaved, match="mended by hand"):
        keep(file, "preset", "auto")
    assert file.read_text() == "theme = \n"
    (tmp_path / "file").write_text("")
    with pytest.raises(NotSaved):
        keep(tmp_path / "file" / "chat.toml", "preset", "auto")
    assert Document(tmp_path).problems

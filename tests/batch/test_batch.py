"""A batch over the tape: each row answered once, whatever stands around it, and whatever interrupts it."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import run_batch
from edgeinfer.batch import journal
from edgeinfer.errors import BadInput, BadRequest, DiskLimit
from tests.batch.taped import read, taped, texts, write

ROOT = Path(__file__).parents[2]


def say(name: str, word: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": name, "prompt": f"Say:{word}=", **fields}


def openai(name: str, word: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say:{word}="}]
    return {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "any", "messages": messages, **body},
    }


BAD: list[Any] = [
    "{broken",
    "[1]",
    '{"custom_id": "nan", "prompt": "Say:x=", "temperature": NaN}',
    {"custom_id": "bad-field", "prompt": "Say:x=", "temprature": 1},
    {"custom_id": "bad-value", "prompt": "Say:x=", "temperature": -1},
    {"custom_id": "bad-none"},
    {"custom_id": "bad-both", "prompt": "a", "messages": []},
    {"custom_id": "", "prompt": "Say:x="},
    {"custom_id": "bad-url", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}},
    {"custom_id": "bad-method", "method": "GET", "url": "/v1/completions", "body": {"prompt": "Say:x="}},
    {"custom_id": "bad-body", "url": "/v1/completions", "body": 3},
    {"custom_id": "bad-messages", "messages": [{"role": "user"}]},
    {"custom_id": "bad-n", "prompt": "Say:x=", "n": 2},
    {"custom_id": "bad-stop", "prompt": "Say:x=", "stop": 5},
    {"custom_id": "bad-bias", "prompt": "Say:x=", "logit_bias": {"a": 1}},
    {"custom_id": "too-long", "prompt": "x" * 600},
    "[" * 100_000,
]


@pytest.fixture(scope="module")
def llm() -> Any:
    with taped() as loaded:
        yield loaded


def test_every_form_of_a_row_is_answered(tmp_path: Path, llm: Any) -> None:
    rows = [
        openai("chat", "one"),
        {"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "Say:two="}},
        {"prompt": "Say:three="},
        {"id": "own", "prompt": "y:four=", "system": "Sa"},
        {"messages": [{"role": "user", "content": "Say:five="}]},
        "",
    ]
    result = run_batch(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, temperature=0, ordered=True)
    assert (result.done, result.failed, result.resumed, result.stopped) == (5, 0, 0, False)
    lines = read(tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in lines] == ["chat", "text", "row-3", "own", "row-5"]
    choices = [line["response"]["body"]["choices"][0] for line in lines]
    assert [choice.get("text") or choice["message"]["content"] for choice in choices] == [
        "one", "two", "three", "four", "five",
    ]  # fmt: skip
    body = lines[0]["response"]["body"]
    assert lines[0]["error"] is None
    assert lines[0]["response"]["status_code"] == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] | {"prompt_tokens_details": 0} == {
        "prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12, "prompt_tokens_details": 0,
    }  # fmt: skip
    assert lines[1]["response"]["body"]["object"] == "text_completion"
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_csv_and_text(tmp_path: Path, llm: Any) -> None:
    table = tmp_path / "in.csv"
    table.write_text(
        'custom_id,prompt,max_tokens,stop\na,Say:abcdef=,3,\nb,"Say:x,\n""y""=",,\nc,Say:abcdef=,,d\n'
        "d,Say:a=,many,\ne,Say:a=\n"
    )
    assert run_batch(table, tmp_path / "csv.jsonl", llm, temperature=0).failed == 2
    assert texts(tmp_path / "csv.jsonl") == {"a": "abc", "b": 'x,\n"y"', "c": "abc"}
    problems = {row["line"]: row["error"]["message"] for row in read(tmp_path / "csv.errors.jsonl")}
    assert problems == {
        6: "max_tokens: found 'many', expected a number, true or false",
        7: "found 2 cells, expected 4 as in the header",
    }
    plain = tmp_path / "in.txt"
    plain.write_bytes(b"\xef\xbb\xbfSay:one=\r\n\nSay:two=\n\xff\n")
    assert run_batch(plain, tmp_path / "txt.jsonl", llm, temperature=0).failed == 1
    assert texts(tmp_path / "txt.jsonl") == {"row-1": "one", "row-3": "two"}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("in.csv", "custom_id,promt\n", "unknown column 'promt'; did you mean 'prompt'"),
        ("in.csv", "custom_id,max_tokens\n", "either 'prompt' or 'messages'"),
        ("in.csv", "prompt,prompt\n", "two columns are named 'prompt'"),
        ("in.xlsx", "", "expected a name that ends in .jsonl"),
    ],
)
def test_a_file_that_is_no_batch(tmp_path: Path, llm: Any, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=problem):
        run_batch(tmp_path / name, tmp_path / "out.jsonl", llm)


def test_bad_rows_are_reported_and_stop_nothing(tmp_path: Path, llm: Any) -> None:
    rows = [row for bad in BAD for row in (bad, say(f"good-{len(str(bad))}-{BAD.index(bad)}", "yes"))]
    source = write(tmp_path / "in.jsonl", [*rows, say("twice", "a"), say("twice", "b")])
    for _ in range(2):  # the second run finds nothing to do
        result = run_batch(source, tmp_path / "out.jsonl", llm, temperature=0)
        assert result.done == len(BAD) + 1
        assert result.failed == len(BAD) + 1
        reported = read(tmp_path / "out.errors.jsonl")
        assert sorted(row["line"] for row in reported) == [*range(1, 2 * len(BAD), 2), 2 * len(BAD) + 2]
    assert set(texts(tmp_path / "out.jsonl").values()) == {"yes", "a"}
    assert result.resumed == result.done
    messages = {row["custom_id"]: row["error"] for row in reported}
    assert messages["bad-field"]["message"] == "unknown field 'temprature'; did you mean 'temperature'?"
    assert messages["too-long"]["code"] == "context_limit"
    assert messages["twice"]["message"] == f"custom_id 'twice' was used in line {2 * len(BAD) + 1}"
    assert all(row["response"] is None for row in reported)


def test_each_row_has_its_own_parameters_and_its_answer_alone(tmp_path: Path) -> None:
    rows = [say(f"n{n}", "abcdefghij", max_tokens=n) for n in range(1, 9)]
    rows += [say(f"s{letter}", "abcdefghij", stop=letter) for letter in "cdef"]
    with taped() as model:
        run_batch(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", model, temperature=0)
    answers = texts(tmp_path / "out.jsonl")
    assert [answers[f"n{n}"] for n in range(1, 9)] == ["abcdefghij"[:n] for n in range(1, 9)]
    assert [answers[f"s{letter}"] for letter in "cdef"] == ["ab", "abc", "abcd", "abcde"]


def test_a_seed_gives_the_same_alone_and_in_company(tmp_path: Path) -> None:
    rows = [{"custom_id": f"r{n}", "prompt": f"q{n}", "temperature": 1, "max_tokens": 12} for n in range(40)]
    rows[7]["seed"] = 5
    together, alone = tmp_path / "out.jsonl", {}
    with taped(None) as model:  # type: ignore[arg-type]  # noise that depends on every token
        run_batch(write(tmp_path / "in.jsonl", rows), together, model)
        for row in (rows[3], rows[7]):
            run_batch(write(tmp_path / "one.jsonl", [row]), tmp_path / f"{row['custom_id']}.jsonl", model)
            alone |= texts(tmp_path / f"{row['custom_id']}.jsonl")
        assert model.chat([{"role": "user", "content": "q7"}], temperature=1, max_tokens=12, seed=5).text == alone["r7"]
    assert {name: texts(together)[name] for name in alone} == alone
    assert len(set(texts(together).values())) == 40


def test_a_shared_prefix_is_computed_once(tmp_path: Path) -> None:
    common = "x" * 400
    rows = [{"custom_id": str(n), "prompt": f"{common}{n % 10}Say:{n}="} for n in range(40)]
    backends: list[Any] = []
    with taped(backends=backends) as model:
        run_batch(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", model, temperature=0)
    assert texts(tmp_path / "out.jsonl") == {str(n): str(n) for n in range(40)}
    assert 400 <= backends[0].tokens < 400 + 40 * 16


def test_on_error_stop_and_max_rows(tmp_path: Path, llm: Any) -> None:
    source = write(tmp_path / "in.jsonl", [say("a", "1"), "{", say("b", "2")])
    assert run_batch(source, tmp_path / "two.jsonl", llm, max_rows=1, temperature=0).failed == 0
    assert texts(tmp_path / "two.jsonl") == {"a": "1"}
    result = run_batch(source, tmp_path / "out.jsonl", llm, on_error="stop", temperature=0)
    assert result.stopped
    assert result.failed == 1
    with pytest.raises(BadRequest, match="on_error"):
        run_batch(source, tmp_path / "out.jsonl", llm, on_error="go")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="max_rows"):
        run_batch(source, tmp_path / "out.jsonl", llm, max_rows=0)


def test_an_option_of_the_job_that_is_wrong_is_not_a_failed_row(tmp_path: Path, llm: Any) -> None:
    source = write(tmp_path / "in.jsonl", [say("a", "1")])
    with pytest.raises(BadRequest, match="unknown option 'temprature'"):
        run_batch(source, tmp_path / "out.jsonl", llm, temprature=0)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("content", ["my notes\n", "my notes", '{"a": 1}\n', "\0\0 notes", '{"id": "row-1"}\nx\n'])
def test_an_output_that_is_not_ours_is_refused_and_kept(tmp_path: Path, llm: Any, content: str) -> None:
    source = write(tmp_path / "in.jsonl", [say("a", "1")])
    for name in ("out.jsonl", "out.errors.jsonl"):
        (tmp_path / name).write_text(content)
        with pytest.raises(BadInput, match="belongs to another job"):
            run_batch(source, tmp_path / "out.jsonl", llm)
        assert (tmp_path / name).read_text() == content
        (tmp_path / name).unlink()


def test_the_output_of_another_job_is_refused(tmp_path: Path, llm: Any) -> None:
    source, output = write(tmp_path / "in.jsonl", [say("a", "1"), say("b", "2")]), tmp_path / "out.jsonl"
    run_batch(source, output, llm, temperature=0)
    before = output.read_bytes()
    with pytest.raises(BadInput, match="other options"):
        run_batch(source, output, llm, temperature=1)
    with pytest.raises(BadInput, match="another row with the id 'b'"):
        run_batch(write(source, [say("a", "1"), say("b", "3")]), output, llm, temperature=0)
    with pytest.raises(BadInput, match="is the input itself"):
        run_batch(output, output, llm)
    assert output.read_bytes() == before
    result = run_batch(write(source, [say("a", "1"), say("c", "3")]), output, llm, temperature=0)
    assert result.done == 3  # rows may be added and taken away


def test_an_output_has_one_writer(tmp_path: Path, llm: Any) -> None:
    source = write(tmp_path / "in.jsonl", [say("a", "1")])
    with journal.Journal(tmp_path / "out.jsonl", lambda _: "", time.monotonic):  # noqa: SIM117
        with pytest.raises(BadInput, match="another process is writing it"):
            run_batch(source, tmp_path / "out.jsonl", llm)


@pytest.mark.parametrize("torn", [b"{", b'{"id": "row-9", "cust', b"\0" * 4096, b'{"id": "row-9"'])
def test_a_torn_end_is_cut_off(tmp_path: Path, llm: Any, torn: bytes) -> None:
    source, output = write(tmp_path / "in.jsonl", [say(str(n), str(n)) for n in range(8)]), tmp_path / "out.jsonl"
    run_batch(source, output, llm, max_rows=5, temperature=0)
    output.write_bytes(output.read_bytes() + torn)
    assert run_batch(source, output, llm, temperature=0).resumed == 5
    assert texts(output) == {str(n): str(n) for n in range(8)}
    output.write_bytes(torn)
    assert run_batch(source, output, llm, temperature=0).resumed == 0
    assert texts(output) == {str(n): str(n) for n in range(8)}


def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(
    tmp_path: Path, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "in.jsonl", [say(str(n), str(n)) for n in range(30)]), tmp_path / "out.jsonl"
    real, room = os.pwrite, [3000]

    def full(file: int, data: bytes, offset: int) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, data[: room[0]], offset)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskLimit, match="make room and give the same command again"):
        run_batch(source, output, llm, temperature=0)
    monkeypatch.undo()
    kept = texts(output)
    assert 0 < len(kept) < 30
    assert run_batch(source, output, llm, temperature=0).resumed == len(kept)
    assert texts(output) == {str(n): str(n) for n in range(30)}


def test_what_is_written_is_synced_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(clock[0]))
    with journal.Journal(tmp_path / "out.jsonl", lambda _: "", lambda: clock[0]) as file:
        for step in range(40):
            clock[0] = step / 10
            file.append({"id": "row-1"})
    assert synced == pytest.approx([1.0, 2.0, 3.0, 3.9])


def test_progress(tmp_path: Path, llm: Any) -> None:
    seen: list[Any] = []
    source = write(tmp_path / "in.jsonl", [*(say(str(n), "ab") for n in range(5)), "{"])
    run_batch(source, tmp_path / "out.jsonl", llm, temperature=0, on_progress=seen.append)
    last = seen[-1]
    assert (last.done, last.failed, last.total, last.tokens, last.seconds_left) == (5, 1, 6, 15, 0)
    assert last.tokens_per_second > 0
    assert last.memory > 1e6


def test_killed_twenty_times_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    rows: list[Any] = []
    for number in range(60):
        word = "".join(chance.choices("abcdefgh", k=chance.randint(1, 30)))
        rows.append(BAD[number // 6] if number % 6 == 5 else say(f"id-{number}", word))
    expected = {row["custom_id"]: row["prompt"][4:-1] for number, row in enumerate(rows) if number % 6 != 5}
    kills = runs = 0
    while kills < 20:
        folder = tmp_path / str(runs)
        folder.mkdir()
        source, output = write(folder / "in.jsonl", rows), folder / "out.jsonl"
        runs += 1
        while True:
            code = _killed_after(chance.uniform(0, 0.35) if kills < 20 else 60, source, output)
            if code == 0:
                break
            kills += 1
        assert texts(output) == expected
        assert sorted(row["line"] for row in read(folder / "out.errors.jsonl")) == list(range(6, 61, 6))


def _killed_after(seconds: float, source: Path, output: Path) -> int:
    command = [sys.executable, "-m", "tests.batch.taped", str(source), str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


GROWTH = """
import sys, psutil
from pathlib import Path
from tests.batch.taped import taped, run_batch
rows = int(sys.argv[2])
seen = []
def note(progress):
    if progress.done > 1000:
        seen.append(psutil.Process().memory_info().rss)
folder = Path(sys.argv[1])
with (folder / "in.jsonl").open("w") as file:
    for number in range(rows):
        file.write('{"custom_id": "%d", "prompt": "Say:%d="}\\n' % (number, number % 10))
with taped() as llm:
    print(run_batch(folder / "in.jsonl", folder / "out.jsonl", llm, temperature=0, on_progress=note).done)
print(seen[-1] - seen[0])
"""


def test_memory_stays_flat(tmp_path: Path) -> None:
    rows = int(os.environ.get("EDGEINFER_TEST_ROWS", "8000"))
    command = [sys.executable, "-c", GROWTH, str(tmp_path), str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    finished, growth = map(int, done.stdout.split())
    assert finished == rows
    assert growth < 500 * rows  # 50 MB for 100,000 rows
    print(growth, file=sys.stderr)

"""The facade as an application uses it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.errors import BadRequest, ContextLimit, EngineClosed, ModelNotFound, TemplateFailed
from tests.tiny import tiny_gguf

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module", params=["mlx", "llama.cpp", "mlx isolated", "llama.cpp isolated"])
def llm(request: pytest.FixtureRequest, tiny: Path) -> Iterator[edgeinfer.LLM]:
    backend, _, isolate = request.param.partition(" ")
    with edgeinfer.load(str(tiny), backend=backend, isolate=bool(isolate)) as loaded:
        yield loaded


def test_a_reply_says_what_was_made_and_how(llm: edgeinfer.LLM) -> None:
    reply = llm.chat(HELLO, temperature=0, max_tokens=6, ignore_eos=True)
    assert reply.finish_reason == "length"
    assert len(reply.ids) == reply.usage.completion == 6
    assert llm.detokenize(reply.ids) == reply.text
    assert reply.backend.startswith(llm.info.backend)
    assert reply.timings.total >= reply.timings.first_token > 0


def test_streamed_pieces_are_the_reply(llm: edgeinfer.LLM) -> None:
    options = {"temperature": 0.9, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    events = list(llm.stream("Once upon", **options))
    assert isinstance(events[-1], edgeinfer.Finished)
    pieces = [event.text for event in events if isinstance(event, edgeinfer.TextDelta)]
    assert "".join(pieces) == llm.generate("Once upon", **options).text


def test_speculation_is_auto_or_off(llm: edgeinfer.LLM) -> None:
    options = {"temperature": 0, "max_tokens": 150, "ignore_eos": True}
    drafted, plain = llm.generate("Once upon", **options), llm.generate("Once upon", speculation=False, **options)
    assert plain.usage.drafted == 0
    assert plain.speculation.why == "off"
    assert drafted.speculation.steps > 0
    if llm.info.backend == "mlx":
        assert drafted.ids == plain.ids
    for bad in ("on", True, None, 1):
        with pytest.raises(BadRequest, match=r"speculation=.*expected 'auto', False, or one of suffix"):
            llm.generate("Once upon", speculation=bad)


@pytest.mark.parametrize("keep", [False, True])
def test_outputs_reach_the_disk_only_where_the_user_wants_that(tiny: Path, own_home: Path, keep: bool) -> None:
    folder = own_home / "edgeinfer"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f"keep_outputs = {str(keep).lower()}\n")
    for _ in range(2):
        with edgeinfer.load(str(tiny), backend="mlx") as loaded:
            loaded.generate("Once upon", temperature=0, max_tokens=12, ignore_eos=True)
    assert len(list((folder / "measured").glob("*.json"))) == 1
    assert len(list((folder / "measured").glob("*.outputs"))) == keep


def test_token_ids_are_a_prompt_too(llm: edgeinfer.LLM) -> None:
    ids = llm.tokenize("Once upon")
    options = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
    given = ids if not llm.tokenizer.add_bos else [llm.tokenizer.bos_id, *ids]
    assert llm.generate(given, **options).ids == llm.generate("Once upon", **options).ids


def test_a_second_prompt_reuses_the_first(llm: edgeinfer.LLM) -> None:
    prompt = llm.tokenize("The same long beginning of two prompts, ") * 3
    llm.generate(prompt, max_tokens=1)
    assert llm.generate([*prompt, 5], max_tokens=1).usage.cached >= len(prompt) - 1


def test_leaving_the_loop_leaves_the_model_usable(llm: edgeinfer.LLM) -> None:
    for event in llm.stream("Hello", max_tokens=400, ignore_eos=True):
        if isinstance(event, edgeinfer.TextDelta):
            break
    assert llm.generate("Hello", temperature=0, max_tokens=3, ignore_eos=True).usage.completion == 3


def test_threads_share_a_model(llm: edgeinfer.LLM) -> None:
    options = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    prompts = ["Hello", "Once upon", "The end of", "and then"]
    alone = {prompt: llm.generate(prompt, **options).text for prompt in prompts}
    together: dict[str, str] = {}

    def work(prompt: str) -> None:
        together[prompt] = llm.generate(prompt, **options).text

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone


def test_an_event_loop_is_not_blocked(llm: edgeinfer.LLM) -> None:
    async def main() -> tuple[str, str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        options = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
        reply = await llm.achat(HELLO, **options)
        pieces = [event.text async for event in llm.astream(HELLO, **options) if isinstance(event, edgeinfer.TextDelta)]
        ticking.cancel()
        return reply.text, "".join(pieces), ticks

    whole, streamed, ticks = asyncio.run(main())
    assert whole == streamed
    assert ticks > 3


def test_a_cancelled_task_ends_its_request(llm: edgeinfer.LLM) -> None:
    async def main() -> None:
        task = asyncio.create_task(llm.agenerate("Hello", max_tokens=400, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert llm.generate("Hello", temperature=0, max_tokens=2, ignore_eos=True).usage.completion == 2


def test_a_prompt_that_does_not_fit(tiny: Path) -> None:
    with edgeinfer.load(str(tiny), context=64) as llm:
        with pytest.raises(ContextLimit, match="the context holds 64"):
            llm.generate("many words " * 100)
        reply = llm.generate("many words " * 100, overflow="drop-oldest", max_tokens=4)
        assert reply.truncated
        turns = [{"role": role, "content": "so many words"} for _ in range(9) for role in ("user", "assistant")]
        reply = llm.chat([*turns, *HELLO], overflow="drop-oldest", max_tokens=4)
        assert reply.truncated
        assert reply.usage.prompt < 64


def test_options_are_checked_by_name(llm: edgeinfer.LLM) -> None:
    with pytest.raises(BadRequest, match="unknown option 'temprature'; did you mean 'temperature'"):
        llm.generate("Hello", temprature=1)
    with pytest.raises(BadRequest, match="temperature"):
        llm.stream("Hello", temperature=float("nan"))
    with pytest.raises(BadRequest, match="tools"):
        llm.generate("Hello", tools=[{}])
    with pytest.raises(BadRequest, match="overflow"):
        llm.generate("Hello", overflow="shrink")
    with pytest.raises(BadRequest, match="prompt is empty"):
        llm.generate([])
    with pytest.raises(BadRequest, match="messages"):
        llm.chat([{"role": "user"}])
    with pytest.raises(BadRequest, match=r"chat\(\) takes messages"):
        llm.chat("Hello")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"generate\(\) takes text"):
        llm.generate(HELLO)  # type: ignore[arg-type]


def test_a_whole_set_of_parameters_can_be_given_and_changed(llm: edgeinfer.LLM) -> None:
    params = edgeinfer.SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    assert llm.generate("Hello", params=params, max_tokens=2).usage.completion == 2


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "base.gguf", metadata={"tokenizer.chat_template": None})
    with edgeinfer.load(str(path)) as llm, pytest.raises(TemplateFailed, match=r"--raw"):
        llm.chat(HELLO)
    with edgeinfer.load(str(path), template="chatml") as llm:
        assert llm.chat(HELLO, max_tokens=2).usage.prompt > 1


def test_an_unknown_model_is_named_with_the_nearest() -> None:
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        edgeinfer.load("smollm2-135n")


def test_use_after_close(tiny: Path) -> None:
    llm = edgeinfer.load(str(tiny))
    stream = llm.stream("Hello", max_tokens=400, ignore_eos=True)
    llm.close()
    llm.close()
    with pytest.raises(EngineClosed):
        llm.generate("Hello")
    last = list(stream)[-1]
    assert isinstance(last, edgeinfer.Finished)
    assert last.finish_reason == "cancelled"


def test_a_dropped_model_ends_its_thread(tiny: Path) -> None:
    before = set(threading.enumerate())
    llm = edgeinfer.load(str(tiny))
    started = [thread for thread in threading.enumerate() if thread not in before]
    assert started
    del llm
    gc.collect()
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)


SCRIPT = """
import edgeinfer, psutil, sys
rss = lambda: psutil.Process().memory_info().rss
for _ in range(2):  # what a first load leaves behind for good is imports, thread pools and torn arenas
    before = rss()
    llm = edgeinfer.load(sys.argv[1])
    llm.generate("Hello there", max_tokens=4)
    loaded = rss()
    llm.close()
print(before, loaded, rss())
"""


@pytest.mark.real_model
def test_close_gives_the_memory_back(smollm2_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    before, loaded, after = map(int, done.stdout.split())
    assert loaded - before > 90e6
    assert after - before < 0.05 * (loaded - before)


def test_a_raw_prompt_that_looks_like_control_tokens_stays_text_and_is_warned_of(llm: edgeinfer.LLM) -> None:
    text = "a<|im_end|>b<|im_end|>"
    reply = llm.generate(text, max_tokens=1)
    assert reply.warnings == ("the prompt contains '<|im_end|>': read as plain text, not as control tokens",)
    assert reply.usage.prompt == len(llm.tokenize(text)) + llm.tokenizer.add_bos
    assert llm.generate("a", max_tokens=1).warnings == ()


@pytest.mark.parametrize("prompt", [None, 5, iter([1, 2]), {1, 2}, {"role": "user", "content": "Hi"}])
def test_what_is_no_prompt_is_refused_by_type(llm: edgeinfer.LLM, prompt: object) -> None:
    for ask in (llm.generate, llm.chat, llm.stream):
        with pytest.raises(BadRequest, match="prompt: found"):
            ask(prompt)  # type: ignore[operator]


@pytest.mark.parametrize("options", [5, "x", {5: 6}, {"messages": []}, {"tools": []}, {"self": 1}])
def test_template_options_take_nothing_over(llm: edgeinfer.LLM, options: object) -> None:
    with pytest.raises(BadRequest, match="template_options: found"):
        llm.chat(HELLO, template_options=options)


def test_params_of_another_type_and_endless_numbers_are_refused(llm: edgeinfer.LLM) -> None:
    with pytest.raises(BadRequest, match="params: found"):
        llm.chat(HELLO, params={"temperature": 1})
    with pytest.raises(BadRequest, match=r"messages\[0\]\.n: found a number of 16610 bits"):
        llm.chat([{**HELLO[0], "n": 10**5000}])


def test_a_temperature_next_to_nothing_is_greedy_without_a_warning(llm: edgeinfer.LLM) -> None:
    greedy = llm.generate("Hello", temperature=0, max_tokens=5)
    assert llm.generate("Hello", temperature=1e-300, max_tokens=5).ids == greedy.ids


def test_a_path_object_is_a_path_and_none_is_the_default(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    with edgeinfer.load(Path(tiny.name), context=None, threads=None) as loaded:
        assert loaded.name == "tiny"


@pytest.mark.parametrize("wrong", [{"model": 5}, {"context": -1}, {"context": "9"}, {"threads": 1.5}, {"threads": 513}])
def test_what_cannot_be_loaded_with_is_refused_by_name(tiny: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        edgeinfer.load(**{"model": str(tiny), **wrong})  # type: ignore[arg-type]


def test_plain_decoding_gives_one_token_a_step(llm: edgeinfer.LLM) -> None:
    """The first token comes of the prompt's pass, and a pass that ran past the end counts for nothing."""
    for options in ({"max_tokens": 8, "ignore_eos": True}, {"max_tokens": 60, "stop": ["e"]}):
        reply = llm.generate("zq", temperature=1.5, seed=3, **options)
        assert reply.usage.accepted or reply.speculation.tokens == reply.speculation.steps == reply.usage.completion - 1

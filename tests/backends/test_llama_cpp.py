"""What the llama.cpp backend does beyond the contract: silence, reasons, limits, and giving memory back."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import llama_cpp as api
import numpy as np
import pytest

from edgeinfer.backends import llama_cpp, llama_library, llama_plan
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.llama_cpp import LlamaCppBackend, LlamaCppSequence
from edgeinfer.errors import (
    BackendUnavailable,
    BadRequest,
    ContextLimit,
    CorruptFile,
    EdgeInferError,
    LimitExceeded,
    MemoryLimit,
    UnsupportedModel,
)
from tests.backends.recurrent import tiny_mamba
from tests.tiny import tiny_gguf

HOSTILE = "fo\x1b]0;owned\x07\no"
NOISE = 5e-2  # float16 sums of flash attention, see test_contract.py
PROMPT = np.random.default_rng(5).integers(0, 320, 400).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=1024)


@pytest.fixture
def backend(path: Path) -> Iterator[LlamaCppBackend]:
    with closing(LlamaCppBackend.load(path, threads=1)) as backend:
        yield backend


def crowded(path: Path, context: int = 128) -> LlamaCppBackend:
    """A backend whose cache holds 256 tokens of all sequences together."""
    with patch.object(llama_plan, "fit", lambda *_: (context, 256)):
        return LlamaCppBackend.load(path, threads=1)


def feed(backend: LlamaCppBackend, state: LlamaCppSequence, tokens: list[int]) -> np.ndarray:
    (logits,) = backend.step([Chunk(state, tokens, "last")])
    state.accept(len(tokens))
    return logits[0]


def held(backend: LlamaCppBackend, tokens: list[int]) -> int:
    """How much of ``tokens`` a new sequence holds already."""
    with closing(backend.open(tokens)) as state:
        return state.length


def run(script: str, *arguments: object) -> str:
    """Stdout of a fresh interpreter that must print nothing else."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_nothing_is_printed(path: Path, tmp_path: Path) -> None:
    bad = tiny_gguf(tmp_path / "bad.gguf", metadata={"general.architecture": HOSTILE})
    script = """
import sys
from pathlib import Path
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.llama_cpp import LlamaCppBackend
from edgeinfer.errors import UnsupportedModel
backend = LlamaCppBackend.load(Path(sys.argv[1]))
state = backend.open()
backend.step([Chunk(state, [1, 2, 3])])
state.accept(1)
backend.close()
try:
    LlamaCppBackend.load(Path(sys.argv[2]))
except UnsupportedModel:
    raise SystemExit(0)
raise SystemExit("loaded")
"""
    assert run(script, path, bad) == ""


def test_the_log_goes_to_logging(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "edgeinfer.backends.llama_library"):
        LlamaCppBackend.load(path).close()
    assert "general.architecture" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"metadata": {"general.architecture": HOSTILE}},
            UnsupportedModel,
            "does not know the architecture 'fo␛]0;owned␇␊o'",
        ),
        ({"metadata": {"tokenizer.ggml.pre": HOSTILE}}, UnsupportedModel, "pre-tokenizer 'fo␛]0;owned␇␊o'"),
        ({"metadata": {"tokenizer.ggml.model": "new"}}, UnsupportedModel, "tokenizer 'new'"),
        ({"tensors": {"blk.1.attn_q.weight": None}}, CorruptFile, "blk.1.attn_q.weight"),
        ({"tensors": {"blk.0.ffn_up.weight": np.ones((128, 32))}}, CorruptFile, "has wrong shape; expected"),
        ({"metadata": {".block_count": None}}, CorruptFile, "llama.block_count"),
        ({"metadata": {".block_count": "two"}}, CorruptFile, "llama.block_count"),
    ],
)
def test_a_refused_file_gives_llama_cpps_reason_in_one_line(
    tmp_path: Path, change: dict[str, dict[str, object]], kind: type[EdgeInferError], words: str
) -> None:
    bad = tiny_gguf(tmp_path / "bad.gguf", **change)  # type: ignore[arg-type]
    with pytest.raises(kind) as caught:
        LlamaCppBackend.load(bad)
    message = str(caught.value)
    assert message.startswith("bad.gguf: ")
    assert words in message
    assert message.isprintable()
    assert len(message) < 400


def test_our_reader_sees_a_file_before_llama_cpp_does(tmp_path: Path) -> None:
    page = tmp_path / "model.gguf"
    page.write_bytes(b"<!DOCTYPE html><html>Sign in</html>")
    with patch.object(api, "llama_model_load_from_file") as load, pytest.raises((CorruptFile, UnsupportedModel)):
        LlamaCppBackend.load(page)
    load.assert_not_called()


def test_an_encoder_is_refused(path: Path) -> None:
    with patch.object(api, "llama_model_has_encoder", lambda _: True), pytest.raises(UnsupportedModel, match="encoder"):
        LlamaCppBackend.load(path)


def test_without_the_package_the_one_command_is_named() -> None:
    with patch.object(llama_library, "installed", lambda: False), pytest.raises(BackendUnavailable) as caught:
        llama_library.library.__wrapped__()
    assert caught.value.install == "pip install 'edgeinfer[llama-cpp]'"
    assert caught.value.install in str(caught.value)


def test_a_broken_installation_says_so() -> None:
    failing = patch.object(llama_library, "import_module", side_effect=RuntimeError("libllama.so: bad\nELF"))
    with failing, pytest.raises(BackendUnavailable, match=r"libllama\.so: bad␊ELF"):
        llama_library.library.__wrapped__()


@pytest.mark.parametrize("nvidia", [False, True])
def test_the_hint_asks_for_a_cuda_build_where_it_helps(nvidia: bool) -> None:
    with patch.object(llama_library, "nvidia_present", lambda: nvidia):
        assert ("GGML_CUDA=on" in llama_cpp.install_hint()) == nvidia


def test_asking_whether_it_is_there_imports_nothing() -> None:
    script = """
import sys
from edgeinfer.backends import llama_library
print(llama_library.installed(), llama_library.nvidia_present() in (True, False), "llama_cpp" in sys.modules)
"""
    assert run(script) == "True True False\n"


def test_the_model_is_described(backend: LlamaCppBackend) -> None:
    info = backend.info
    assert (info.name, info.architecture, info.backend) == ("tiny llama", "llama", "llama.cpp")
    assert (info.vocab_size, info.context, info.kv_bytes_per_token) == (320, 1024, 2 * 2 * 2 * 2 * 16)
    assert (info.quantization, info.weight_bytes) == ("F32", 4 * info.parameters)
    assert info.device == ("cpu" if not llama_cpp.gpu_offload() else info.device)


@pytest.mark.real_model
def test_the_real_models_are_described(smollm2_path: Path, gemma3_path: Path) -> None:
    with closing(LlamaCppBackend.load(smollm2_path)) as backend:
        info = backend.info
    assert (info.quantization, info.parameters, info.context) == ("Q4_1", 134_515_008, 8192)
    assert (info.vocab_size, info.kv_bytes_per_token) == (49152, 30 * 3 * 64 * 2 * 2)
    with closing(LlamaCppBackend.load(gemma3_path, context=512)) as backend:
        info = backend.info
    assert (info.quantization, info.architecture, info.context) == ("Q4_K_M", "gemma3", 512)
    assert (info.vocab_size, info.kv_bytes_per_token) == (262144, 18 * 256 * 2 * 2)


@pytest.mark.parametrize(
    ("context", "trained", "available", "expected"),
    [
        (0, 2048, 1 << 40, (2048, 8192)),
        (0, 131072, 1 << 40, (8192, 16384)),
        (32768, 131072, 1 << 40, (32768, 65536)),
        (0, 131072, 8000 * 100, (4000, 4000)),  # bytes for 8,000 tokens: half of them for the context
        (2000, 131072, 24000 * 100, (2000, 3000)),
    ],
)
def test_context_and_cells_follow_the_memory(
    context: int, trained: int, available: int, expected: tuple[int, int]
) -> None:
    assert llama_plan.fit(context, trained, 100, available) == expected


def test_a_context_that_does_not_fit_is_refused_with_the_numbers(path: Path) -> None:
    with pytest.raises(BadRequest, match="trained for 1024"):
        LlamaCppBackend.load(path, context=1025)
    with pytest.raises(MemoryLimit) as caught:
        llama_plan.fit(4096, 8192, 100, 100 * 4096)
    assert (caught.value.needed, caught.value.available) == (409600, 204800)
    with (
        patch.object(api, "llama_init_from_model", lambda *_: None),
        pytest.raises(MemoryLimit, match="could not make"),
    ):
        LlamaCppBackend.load(path)


def test_a_chunk_longer_than_a_batch_is_decoded_in_pieces(path: Path) -> None:
    tokens = [*PROMPT, *PROMPT]
    with closing(LlamaCppBackend.load(path, threads=1)) as backend:
        (whole,) = backend.step([Chunk(backend.open(), tokens, "all")])
    rows_that_fit = 70
    with (
        patch.object(llama_cpp, "_LOGITS_BYTES", rows_that_fit * 4 * 320),
        patch.object(api, "llama_decode", wraps=api.llama_decode) as decode,
        closing(LlamaCppBackend.load(path, threads=1)) as backend,
    ):
        first, second = backend.open(), backend.open()
        few, last = backend.step([Chunk(first, tokens[:300], "all"), Chunk(second, tokens, "last")])
    assert decode.call_count == 4 + 2  # 4 × 70 rows, then 20 + 492 tokens, then 308
    assert np.abs(few - whole[:300]).max() < NOISE
    assert np.abs(last[0] - whole[-1]).max() < NOISE


def test_a_decode_that_fails_halfway_leaves_the_sequences_as_they_were(backend: LlamaCppBackend) -> None:
    state, other = backend.open(), backend.open()
    feed(backend, state, PROMPT[:20])
    decode, results = api.llama_decode, iter([0, -3])

    def failing(*arguments: object) -> int:
        return next(results) or decode(*arguments)

    with patch.object(api, "llama_decode", failing), pytest.raises(EdgeInferError, match="status -3"):
        backend.step([Chunk(state, PROMPT[20:60], "none"), Chunk(other, [*PROMPT, *PROMPT], "last")])
    assert (state.length, other.length) == (20, 0)
    found = feed(backend, state, PROMPT[20:25])
    assert np.abs(found - feed(backend, other, PROMPT[:25])).max() < NOISE


def test_sequences_that_wait_make_room_and_come_back(path: Path) -> None:
    with closing(crowded(path)) as backend, closing(LlamaCppBackend.load(path, threads=1)) as cold:
        prompts = [PROMPT[at : at + 100] for at in (0, 100, 200, 300)]
        states = [backend.open() for _ in prompts]
        for _ in range(2):
            for state, prompt in zip(states, prompts, strict=True):
                found = feed(backend, state, prompt[state.length :][:50])
                assert np.abs(found - feed(cold, cold.open(), prompt[: state.length])).max() < NOISE
        with pytest.raises(ContextLimit, match="4 sequences of this step"):
            backend.step([Chunk(state, [1], "last") for state in states])
        assert [state.length for state in states] == [100] * 4
        assert np.abs(feed(backend, states[1], [1]) - feed(cold, cold.open(), [*prompts[1], 1])).max() < NOISE


def test_closed_sequences_are_given_up_before_open_ones(path: Path) -> None:
    with closing(crowded(path)) as backend:
        kept, closed = backend.open(), backend.open()
        feed(backend, kept, PROMPT[:100])
        feed(backend, closed, PROMPT[100:200])
        closed.close()
        assert held(backend, PROMPT[100:200]) == 99
        feed(backend, backend.open(), PROMPT[200:320])
        assert held(backend, PROMPT[100:200]) == 0
        assert held(backend, PROMPT[:100]) == 99


def test_there_are_64_sequences_and_closing_one_makes_room(backend: LlamaCppBackend) -> None:
    states = [backend.open() for _ in range(64)]
    with pytest.raises(LimitExceeded, match="64 sequences"):
        backend.open()
    with pytest.raises(LimitExceeded):
        states[0].fork()
    feed(backend, states[3], [1, 2, 3])
    states[3].close()
    reopened = backend.open([1, 2, 9])
    assert reopened.length == 2
    reopened.close()
    feed(backend, backend.open([7, 8]), [7, 8])


def test_a_conversation_goes_on_in_its_own_cells(backend: LlamaCppBackend) -> None:
    for turn in range(100):
        state = backend.open(PROMPT[: 3 * turn + 1])
        assert state.length == max(0, 3 * (turn - 1) + 1 if turn else 0)
        feed(backend, state, PROMPT[state.length : 3 * turn + 1])
        state.close()


def test_a_recurrent_state_is_reused_whole_or_not_at_all(tmp_path: Path) -> None:
    with closing(LlamaCppBackend.load(tiny_mamba(tmp_path / "mamba.gguf"), threads=1)) as backend:
        state = backend.open()
        feed(backend, state, PROMPT[:20])
        assert held(backend, PROMPT[:15]) == 0
        backend.step([Chunk(state, [1], "none")])
        assert held(backend, PROMPT[:30]) == 0
        state.accept(1)
        assert held(backend, PROMPT[:30]) == 0
        state.close()
        assert held(backend, [*PROMPT[:20], 1, 2]) == 21
        assert backend.info.kv_bytes_per_token == 0


def test_close_gives_the_memory_back(tmp_path: Path) -> None:
    big = tiny_gguf(tmp_path / "big.gguf", hidden=256, layers=8, feed_forward=2048, context=8192)
    script = """
import sys
from pathlib import Path
import psutil
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.llama_cpp import LlamaCppBackend
resident = lambda: psutil.Process().memory_info().rss >> 20
def used():
    backend = LlamaCppBackend.load(Path(sys.argv[1]))
    state = backend.open()
    backend.step([Chunk(state, list(range(200)))])
    most = resident()
    backend.close()
    return most
used()
before = resident()
print(before, used(), resident())
"""
    before, most, after = map(int, run(script, big).split())
    assert most - before > 50
    assert after - before < 10


@pytest.mark.parametrize("tokens", [[1.5], [[1, 2]], ["1"], [1 << 40]])
def test_only_rows_of_whole_numbers_are_tokens(backend: LlamaCppBackend, tokens: list[object]) -> None:
    state = backend.open()
    for use in (lambda: backend.step([Chunk(state, tokens)]), lambda: backend.open(tokens)):  # type: ignore[arg-type]
        _refused(use)


def _refused(use: Callable[[], object]) -> None:
    with pytest.raises(BadRequest):
        use()


IMPOSSIBLE = {
    "block_count": 0,
    "block_count ": 513,
    "context_length": 1 << 31,
    "attention.layer_norm_rms_epsilon": float("nan"),
    "attention.layer_norm_rms_epsilon ": -1.0,
    "rope.freq_base": 0.0,
    "rope.freq_base ": float("inf"),
    "rope.scaling.type": "fo\x1bo",
    "rope.dimension_count": 15,
    "attention.key_length": 15,
}


@pytest.mark.parametrize(("key", "value"), IMPOSSIBLE.items(), ids=IMPOSSIBLE)
def test_settings_at_which_llama_cpp_would_end_the_process_are_refused(tmp_path: Path, key: str, value: object) -> None:
    file = tiny_gguf(tmp_path / "bad.gguf", metadata={f".{key.strip()}": value})
    with pytest.raises((CorruptFile, UnsupportedModel), match=f"llama.{key.strip()} at byte "):
        LlamaCppBackend.load(file)


def test_a_file_that_changes_while_it_is_used_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf")
    backend = LlamaCppBackend.load(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CorruptFile, match="changed while in use"):
        backend.step([Chunk(backend.open(), [1, 2])])
    backend.close()

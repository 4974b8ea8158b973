"""The table of models/README.md: family × codec × backend, each cell tried on a tiny model.

``python -m tests.support`` tries the cells that the table lacks, with ``--again`` all of them, and writes it, with the
folders that open, and its summary into README.md; a test tries some of them against what is written.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from gguf.quants import QuantError

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.llama_cpp import LlamaCppBackend
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.converted.families import FAMILIES as PUBLISHED
from edgeinfer.errors import EdgeInferError
from edgeinfer.quant.codec import BY_GGML_ID, CODECS
from tests.architectures import FAMILIES, tiny
from tests.tiny import tiny_gguf

PAGE = Path(__file__).parents[1] / "models" / "README.md"
FIRST_PAGE = PAGE.parents[1] / "README.md"
SUMMARY = re.compile(r"\[[^\]]*\]\(models/README\.md\)")
BEGIN, END = "<!-- table: python -m tests.support -->", "<!-- end of table -->"
DENSE: dict[str, dict[str, int]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma3": {},
    "nemotron-labs-diffusion": {".diffusion.mask_token_id": 319, ".diffusion.block_size": 8},
}
"""Those that ``tiny_gguf`` makes in any size, and their keys. llama.cpp does not know the last one."""
BACKENDS = {"mlx": MLXBackend, "llama.cpp": LlamaCppBackend}
SLOW = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
"""ggml takes seconds to learn to encode these; they stand in two columns."""
MARKS = {(True, True): "both", (True, False): "MLX", (False, True): "llama.cpp", (False, False): "none"}


def families() -> list[str]:
    return [*DENSE, *(name for name in FAMILIES if name not in DENSE)]


def codecs() -> list[str]:
    return [row.name for row in BY_GGML_ID.values() if row.decodable and row.name in CODECS and row.name != "q2_0"]


def fits(family: str, codec: str) -> bool:
    """Whether a tiny model can be made of it: the larger families' have rows of 64."""
    if codec in SLOW and family not in ("llama", "qwen2"):
        return False
    return family in DENSE or CODECS[codec].weights <= 32


def make(folder: Path, family: str, codec: str) -> Path:
    if family in DENSE:
        return tiny_gguf(
            folder / "m.gguf", family, codec=codec, hidden=256, head_dim=64, feed_forward=256, metadata=DENSE[family]
        )
    parts = ("attn_q.", "attn_k.", "attn_v.", "attn_output.", "attn_qkv", "ffn_gate.", "ffn_up.", "ffn_down.",
             "_exps.weight", "ssm_in", "ssm_out", "token_embd")  # fmt: skip
    return tiny(folder / "m.gguf", family, codec=dict.fromkeys(parts, codec))


def attempt(path: Path, backend: str) -> str:
    """Empty where a few tokens gave finite logits; else why not."""
    try:
        loaded = BACKENDS[backend].load(path, 64)
        try:
            (logits,) = loaded.step([Chunk(loaded.open(), [1, 2, 3, 4], "all")])
            return "" if np.isfinite(np.asarray(logits)).all() else "logits that are no numbers"
        finally:
            loaded.close()
    except EdgeInferError as error:
        return str(error)


def cell(family: str, codec: str) -> tuple[str, dict[str, str]]:
    """Who ran it, and what each refused for."""
    with TemporaryDirectory() as folder:
        try:
            path = make(Path(folder), family, codec)
        except QuantError:  # rows of a size that the format does not hold
            return "·", {}
        found = {backend: attempt(path, backend) for backend in BACKENDS}
    return MARKS[not found["mlx"], not found["llama.cpp"]], {name: why for name, why in found.items() if why}


def cells() -> Iterator[tuple[str, str]]:
    return ((family, codec) for family in families() for codec in codecs() if fits(family, codec))


def table(known: dict[tuple[str, str], str]) -> str:
    rows = {codec: ["·"] * len(families()) for codec in codecs()}
    reasons: dict[str, list[tuple[str, str]]] = {}
    for family, codec in cells():
        mark, refusals = (known[family, codec], {}) if (family, codec) in known else cell(family, codec)
        rows[codec][families().index(family)] = mark
        for backend, why in refusals.items():
            reasons.setdefault(f"{backend}: {why}", []).append((family, codec))
        print(f"{family:12} {codec:8} {mark}", file=sys.stderr)
    lines = ["| | " + " | ".join(families()) + " |", "|---" * (len(families()) + 1) + "|"]
    lines += [f"| {codec} | " + " | ".join(marks) + " |" for codec, marks in rows.items()]
    notes = [f"- {why.partition(': ')[0]}: {shortened(why)} ({placed(where)})" for why, where in reasons.items()]
    return "\n".join([*lines, *(["", "Refused:", "", *notes] if notes else [])])


def placed(where: list[tuple[str, str]]) -> str:
    """Families, each with the formats where they are not all that were tried."""
    found = []
    for family in dict.fromkeys(family for family, _ in where):
        refused = [codec for each, codec in where if each == family]
        tried = [codec for each, codec in cells() if each == family]
        found.append(family if refused == tried else f"{family} in {', '.join(refused)}")
    return "; ".join(found)


def shortened(why: str) -> str:
    """A refusal without the backend and the file's name in front."""
    return why.partition(": ")[2].partition(": ")[2] or why


def written() -> dict[tuple[str, str], str]:
    """The page's cells."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {(family, row[0]): mark for row in rows[1:] for family, mark in zip(rows[0][1:], row[1:], strict=True)}


def folders() -> str:
    """Which published folders open, by the name in their config.json."""
    names = textwrap.fill(", ".join(sorted(PUBLISHED)), 118)
    return f"Folders of safetensors run on MLX alone, by their `model_type`:\n{names}."


def summary() -> str:
    """The table in a few words, for the first page."""
    marks = list(written().values())
    both = sum(mark == "both" for mark in marks)
    return f"{len(families())} families × {len(codecs())} formats, {both} cells on both engines"


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    known = {} if "--again" in sys.argv else {pair: mark for pair, mark in written().items() if mark == "both"}
    made = f"{BEGIN}\n\n{table(known)}\n\n{folders()}\n\n{END}"
    PAGE.write_text(before + made + rest.partition(END)[2], encoding="utf-8")
    first = FIRST_PAGE.read_text(encoding="utf-8")
    FIRST_PAGE.write_text(SUMMARY.sub(f"[{summary()}](models/README.md)", first), encoding="utf-8")


if __name__ == "__main__":
    main()

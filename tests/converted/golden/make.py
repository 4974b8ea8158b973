"""Runs the tiny models of ``tests.converted.published`` in transformers and keeps what they say.

    pip install torch transformers safetensors
    python -m tests.converted.golden.make

Writes, beside this file, layouts.json.gz (the config.json of each model, names and shapes of its tensors, versions) and
logits.npz. Neither library is needed to test against them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.converted.published import BASE, MODELS, PLACES, tokens, weights

HERE = Path(__file__).parent


def run(kind: str) -> tuple[dict[str, Any], np.ndarray]:
    """The layout that ``save_pretrained`` writes, and logits of the weights that follow from its names."""
    config = transformers.AutoConfig.for_model(kind.split()[0], **(BASE | MODELS[kind]))
    with TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        save_file({name: weights(name, shape) for name, shape in shapes.items()}, path, {"format": "pt"})
        options = {"attn_implementation": "eager", "dtype": torch.float32}
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
        with torch.no_grad():
            logits = model(torch.tensor([tokens()]), use_cache=False).logits[0, list(PLACES)]
        written = json.loads((Path(folder) / "config.json").read_text())
    return {"config": written, "shapes": shapes}, logits.numpy()


def main() -> None:
    layouts: dict[str, Any] = {}
    logits: dict[str, np.ndarray] = {}
    for kind in MODELS:
        layouts[kind], logits[kind] = run(kind)
        print(kind, len(layouts[kind]["shapes"]), float(logits[kind].std()))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    text = json.dumps({"made with": versions, "models": layouts}, sort_keys=True).encode()
    (HERE / "layouts.json.gz").write_bytes(gzip.compress(text, mtime=0))
    np.savez_compressed(HERE / "logits.npz", **logits)


if __name__ == "__main__":
    main()

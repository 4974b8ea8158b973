"""Renders every template with every conversation through transformers, into renders.json beside this file.

Run by hand where transformers is installed (``pip install transformers jinja2``); the tests only read the result.
"""

import json
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

FOLDER = Path(__file__).parent


def render(source: str, conversation: dict[str, Any], special_tokens: dict[str, str]) -> str | dict[str, str]:
    arguments = {"add_generation_prompt": True, "tools": None, "documents": None} | conversation | special_tokens
    messages = _normalize_chat_messages(arguments.pop("messages"))
    try:
        [text], _ = render_jinja_template([messages], chat_template=source, **arguments)
    except Exception as error:  # what the template raises is part of what is compared
        return {"error": " ".join(str(error).split())}
    return text


if __name__ == "__main__":
    golden = json.loads((FOLDER / "renders.json").read_text())
    golden["renders"] = {
        path.stem: {
            name: render(path.read_text(), conversation, golden["special_tokens"])
            for name, conversation in golden["conversations"].items()
        }
        for path in sorted(FOLDER.glob("*.jinja"))
    }
    (FOLDER / "renders.json").write_text(json.dumps(golden, indent=0, separators=(",", ":")) + "\n")

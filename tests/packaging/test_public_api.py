"""The names that user code relies on."""

from __future__ import annotations

import pytest

import edgeinfer
from edgeinfer import errors


def test_every_public_name_resolves() -> None:
    assert set(edgeinfer.__all__) == {
        "LLM", "load", "SamplingParams", "Message", "Reply", "TextDelta", "ReasoningDelta", "Finished", "Usage",
        "Timings", "TokenLogprob", "ToolCall", "ToolCallDelta", "EdgeInferError", "run_batch",
        "plan_batch", "BatchPlan", "BatchProgress", "BatchResult", "__version__",
    }  # fmt: skip
    for name in edgeinfer.__all__:
        assert getattr(edgeinfer, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Lmm'"):
        _ = edgeinfer.Lmm


def test_the_drawing_of_the_errors_is_their_tree() -> None:
    """Each class stands in the module's drawing, indented as deep as it derives, with the exit code that it has."""
    lines = [line for line in (errors.__doc__ or "").splitlines() if any(mark in line for mark in "├└")]
    drawn = {line.split("─ ")[1].split()[0]: line for line in lines}
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.EdgeInferError) and kind is not errors.EdgeInferError
    }
    assert set(drawn) == set(classes)
    for name, kind in classes.items():
        depth = kind.__mro__.index(errors.EdgeInferError)
        assert drawn[name].index("─") == 4 * (depth - 1) + 1
        if "exit" in drawn[name]:
            assert f"exit {kind.exit_code}" in drawn[name]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.EdgeInferError, 1),
        (errors.NotSaved, 4),
        (errors.EngineClosed, 1),
        (errors.EngineCrashed, 1),
        (errors.BadRequest, 2),
        (errors.TemplateFailed, 2),
        (errors.BackendUnavailable, 2),
        (errors.ModelNotFound, 2),
        (errors.CorruptFile, 2),
        (errors.UnsupportedModel, 2),
        (errors.MemoryLimit, 4),
        (errors.DiskLimit, 4),
        (errors.ContextLimit, 4),
        (errors.NetworkFailed, 5),
    ],
)
def test_exit_codes(kind: type[errors.EdgeInferError], code: int) -> None:
    assert kind.exit_code == code

"""What clang takes and Apple's compiler would refuse, or read otherwise: rules on the text of our kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass

SPACES = ("device", "constant", "threadgroup", "thread")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern that may not occur, and why."""

    pattern: re.Pattern[str]
    reason: str


RULES = tuple(
    Rule(re.compile(pattern, re.M), reason)
    for pattern, reason in (
        (r"\bdouble\b", "Metal has no double"),
        (r"\b(?:goto|throw|try|virtual|new|delete|thread_local)\b", "not in Metal's C++"),
        (r"\bstd::", "Metal has no standard library of C++"),
        (r"\b__builtin_\w+", "a builtin of clang"),
        (r"\bif constexpr\b", "C++17; Metal 3 is C++14"),
        (r"\.(?:s[0-9a-f]|lo|hi|odd|even)\b", "a swizzle of OpenCL"),
        (r"^\s*static (?!constexpr)(?:const )?\w+ \w+(?: =|;)", "a static variable outside the constant address space"),
        (r"\b(?:ceildiv|cast_to|Limits|hypot|log1p|elem_to_loc\w*|WorkPerThread|ConditionalType)\b",
         "a name that the text MLX puts in front has taken"),
        (r"(?<![\w:.])(?:simd(?:group)?_\w+|threadgroup_barrier|fma|exp|min|max|clamp)\(", "write metal:: in front"),
        (r"\b(?:w|up|x|q|k|v|y|queries|from) \+ (?:\w+|\([^()]*\)) \* (?:w_shape|all_outputs|columns|row_bytes)",
         "an offset that 32 bits need not hold: write ulong() around its first factor"),
        (r"\b[wxyqkv]\[(?!ulong)\(?\w+(?: \+ \w+)?\)? \*",
         "an index that 32 bits need not hold: write ulong() around its first factor"),
        (r"(?<!precise::)\b(?:exp|tanh)\(", "fast math would change it: write metal::precise:: in front"),
    )
)  # fmt: skip
COMMENT = re.compile(r"//[^\n]*")
PARAMETERS = re.compile(r"\b\w+\(((?:[^()]|\([^()]*\))*)\)\s*(?:const\s*)?\{")
POINTER = re.compile(r"^(?:const\s+)?\w+\b.*[*&]")
OUTSIDE = re.compile(r"^\s*threadgroup\s+(?!const\b)[\w:<>]+\s+\w+\[", re.M)


def findings(text: str, header: bool) -> list[str]:
    """What is wrong with the text of a kernel or, with ``header``, of an included file."""
    text = COMMENT.sub("", text)
    found = [f"{match[0].strip()}: {rule.reason}" for rule in RULES for match in rule.pattern.finditer(text)]
    for match in PARAMETERS.finditer(text):
        for parameter in match[1].split(","):
            pointer = POINTER.match(parameter.strip())
            if pointer and not any(re.search(rf"\b{space}\b", parameter) for space in SPACES):
                found.append(f"{parameter.strip()}: a pointer or reference without an address space")
    if header and OUTSIDE.search(text):
        found.append("a threadgroup variable outside a kernel")
    return found

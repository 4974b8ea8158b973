r"""How a byte-level BPE vocabulary splits text into words: one row a rule, named by ``tokenizer.ggml.pre``.

The rules are those of llama.cpp (``llama-vocab.cpp``, ``unicode.cpp``), written for Oniguruma, the engine of the
``tokenizers`` library. The patterns of a row apply one after the other, each to the pieces that the last one left;
text between two matches is a piece of its own, and an anchor or a look-ahead sees its piece alone. Where llama.cpp
departs from the rule that a model was trained with, the row departs too. Three differences between the engines matter:

* ``\p{Lu}``, ``\p{Ll}``, … all mean ``\p{L}`` there, and its tables stand at Unicode 15.1 (see ``_pinned``);
* ``\d``, ``[a-z]`` and the contractions know ASCII only there, so they are spelled out here;
* a pattern without ``\p`` sees every white space as a vertical tab, so its ranges leave out white space (``&&\S``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}"

# Upper case then lower case: only ASCII letters have a case there. In "cased", a mark is no letter; in "marked" it is.
_CASED = r"[^\r\n\p{L}\p{N}]?(?:[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*)"
_MARKED = r"[^\r\n\p{L}\p{N}]?(?:[\p{L}\p{M}&&[^a-z]]*[\p{L}\p{M}&&[^A-Z]]+|[\p{L}\p{M}&&[^a-z]]+[\p{L}\p{M}&&[^A-Z]]*)"
_PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"

# Digits in threes from the right; the text before a run of digits stays with its first group, as in llama.cpp.
_THREES = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

_ASCII_WORD = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_KANA_HAN = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}&&\S]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", _KANA_HAN, rf"{_ASCII_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}")
_SCRIPTS = (  # the ranges that llama.cpp has for "CJK and Asian scripts"
    r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}"
    r"\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
_HAN = r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}"
_KIMI_WORD = rf"[^\r\n\p{{L}}\p{{N}}{_HAN}]?[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTION})?"
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
_CASED_LETTERS = (  # Lu, Ll and Lt of the Unicode version that DeepSeek's first tokenizer was made with
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}"
    r"\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}"
    r"\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}"
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}"
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}"
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}"
    r"\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_YOUTU_BLOCKS = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}"
    r"\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|" + _KANA_HAN
)
_JAIS2_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One rule: ``names`` are the values of ``tokenizer.ggml.pre`` that mean it."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token needs no merging
    add_bos: bool = False  # unless tokenizer.ggml.add_bos_token says otherwise
    forces_bos: bool = False  # whatever it says
    spaced: bool = False  # characters with U+2581 for a space, not bytes; cut at newlines, patterns unused
    whole_newlines: bool = False  # a run of newlines that is a token needs no merging

    @property
    def expressions(self) -> tuple[str, ...]:
        """The patterns as Oniguruma takes them."""
        return tuple(_pinned(pattern) for pattern in self.patterns)


_ROWS = (
    PreTokenizer(("default",), (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    PreTokenizer(
        (
            "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
        ),
        (_LLAMA3,),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), (_LLAMA3,)),
    PreTokenizer(("glm4", "glm5"), (_LLAMA3,), ignore_merges=True),
    PreTokenizer(
        ("jais-2",), (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_JAIS2_SPACES}",)
    ),
    PreTokenizer(
        ("deepseek-llm",),
        (
            r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]+",
            r"\s+\z", _CJK, r"\p{N}+",
        ),
    ),
    PreTokenizer(("deepseek-coder",), (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    PreTokenizer(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    PreTokenizer(
        ("spark2_5",),
        (r"\p{N}{1,3}", _KANA_HAN, rf"{_ASCII_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}", r"\p{N}"),
    ),
    PreTokenizer(
        ("youtu",),
        (
            _YOUTU_BLOCKS,
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?|\p{{N}}|{_PATHS}",
        ),
        ignore_merges=True,
    ),
    PreTokenizer(("falcon",), (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    PreTokenizer(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
        (r"\p{N}", _GPT2),
    ),
    PreTokenizer(
        (
            "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v1-en", "jina-v2-es", "jina-v2-de",
            "jina-v2-code", "a.x-4.0", "mellum", "modern-bert", "roberta-bpe", "mpt", "olmo", "jais", "exaone4",
            "trillion", "granite-docling",
        ),
        (_GPT2,),
    ),
    PreTokenizer(
        (
            "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2",
            "bailingmoe", "bailingmoe2", "llada-moe",
        ),
        (_QWEN2,),
    ),
    PreTokenizer(
        ("qwen35",),
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}",
        ),
    ),
    PreTokenizer(("ufakzeka",), (rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}",)),
    PreTokenizer(("laguna",), (r"[^\n]+|\n+", _QWEN2)),
    PreTokenizer(("poro-chat", "bloom", "gpt3-finnish"), (_BLOOM,)),
    PreTokenizer(("viking",), (_BLOOM, r"\p{N}")),
    PreTokenizer(("tekken",), (rf"{_CASED}|\p{{N}}|{_PATHS}",), ignore_merges=True, add_bos=True),
    PreTokenizer(
        ("chameleon",),
        (
            "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
        ),
        add_bos=True,
    ),
    PreTokenizer(
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        (rf"{_CASED}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}|{_PATHS}",),
    ),
    PreTokenizer(
        ("granite-embed-multi-97m",),
        (rf"{_MARKED}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}|{_PATHS}",),
        ignore_merges=True,
    ),
    PreTokenizer(
        ("tiny_aya", "cohere2moe"),
        (
            _THREES,
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?|\p{{N}}{{1,3}}|{_PATHS}",
        ),
    ),
    PreTokenizer(("kimi-k2",), (rf"[{_HAN}]+|{_KIMI_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}",)),
    PreTokenizer(("superbpe",), (r"\p{N}+", "(?=(?:[0-9]{3})+(?![0-9]))")),
    PreTokenizer(("seed-coder",), (rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",)),
    PreTokenizer(("afmoe",), (_THREES, _SCRIPTS, _DEEPSEEK3[2])),
    PreTokenizer(
        ("exaone-moe",),
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        ),
    ),
    PreTokenizer(("minicpm5",), (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_LINES}"), True),
    PreTokenizer(("gemma4", "granite-embed-multi-311m"), (), forces_bos=True, spaced=True, whole_newlines=True),
    PreTokenizer(("sarvam-moe",), (), spaced=True),
)  # fmt: skip
PRETOKENIZERS: dict[str, PreTokenizer] = {name: row for row in _ROWS for name in row.names}

# What Unicode 16 added to letters, numbers, marks, punctuation and symbols; the gaps hold nothing that is assigned.
_ADDED_LATER = (
    r"\x{897}\x{1B4E}-\x{1B4F}\x{1B7F}\x{1C89}-\x{1C8A}\x{2427}-\x{2429}\x{31E4}-\x{31E5}\x{A7CB}-\x{A7CD}"
    r"\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D40}-\x{10D8F}\x{10EC2}-\x{10EFC}\x{11380}-\x{113E2}"
    r"\x{116D0}-\x{116E3}\x{11BC0}-\x{11BF9}\x{11F5A}\x{13460}-\x{143FA}\x{16100}-\x{16139}\x{16D40}-\x{16D79}"
    r"\x{18CFF}\x{1CC00}-\x{1CEB3}\x{1E5D0}-\x{1E5FF}\x{1F8B2}-\x{1F8C1}\x{1FA89}-\x{1FA8F}\x{1FABE}\x{1FAC6}"
    r"\x{1FADC}-\x{1FADF}\x{1FAE9}\x{1FBCB}-\x{1FBEF}"
)


def _pinned(pattern: str) -> str:
    r"""The pattern with each ``\p{..}`` held at Unicode 15.1, whatever version Oniguruma was built with."""
    held = re.sub(r"\\p\{(\w)\}", rf"[\\p{{\1}}&&[^{_escaped(_ADDED_LATER)}]]", pattern)
    return re.sub(r"\\P\{(\w)\}", rf"[\\P{{\1}}{_escaped(_ADDED_LATER)}]", held)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\")

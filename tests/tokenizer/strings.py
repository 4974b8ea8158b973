"""Strings that tell tokenizers apart: a list by hand, and any number from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

SEED = 20261130

WORDS = (
    "the", "The", "THE", "iPhone", "don't", "DON'T", "I'm", "we'll", "they've", "you're", "he'd", "it's", "IT'S", "'Sup",
    "'t", "'LL", "'ſ", "’s", "straße", "naïve", "e\u0301te\u0301", "Ελλάδα", "Привет", "МИР", "ǅ", "ʰ", "İstanbul",
    "שָׁלוֹם", "مرحبا", "١٢٣", "हिन्दी", "ไทย", "ខ្មែរ", "မြန်မာ", "한국어", "각각", "カタカナ", "ｶﾀｶﾅ", "ひらがな", "日本語", "中文字符", "㐀𠀀",
    "〇一二", "ㄅㄆ", "𝐀𝐁𝐂", "Ⅷ", "½", "x²", "１２３", "12345678", "3.14159", "0xFF", "1,000,000", "2024-01-31", "߁߂", "²1234",
    "👍", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "e\u0301", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤", "\u200b", "\u200d", "\ufeff", "\u202eabc\u202c", "\u00ad", "ﬁ",
    "def", "return", "self.x", "->", "!=", "===", "//", "/*", "*/", "#include", "{}", "[]", "()", "<div>", "</div>", "\\n", "$x",
    "`", "~", "^", "|", "+", "=", "<", ">", "§", "€", "…", "“", "”", "—", "।", "۔", "،", "。", "，", "！", "「", "」", "▁", "▁▁", "Ġ",
    "camelCaseWord", "snake_case", "HTTPServer", "ABCdef", "aBC", "http://a.b/c?d=e", "a/b/c", "C:\\dir", "<0x0A>", "<0x41>",
    "<sentinel:12>", "IMGIMGABZ", "\ue000", "\U000f0000", "\u0378", "\U0002ebf0", "\u1c89", "\U00010d40", "\U0001fae9", "\u0897",
    "\u0085", "\x00", "\x01", "\x1b[0m", "\x7f", "\x1c", "\x1f",
)  # fmt: skip
SPACES = (
    " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", "\v", "\f", "\u00a0", "\u00a0 ",
    "\u3000", "\u2003", "\u2028", "\u2029", "\u1680", "\u202f", " \n", "\n ", " \t \n", "\x85", "     ", " " * 17,
)  # fmt: skip
HAND = (
    "", " ", "  ", "a", " a", "a ", " a ", "\n", "\n\n", " \n ", "\r\n", "\t", "\v", "\u00a0", "\u3000", "\x00", "\ufffd",
    "Hello, world!", "Hello,   world!  ", "I'm sure it's 'quoted' and THEY'VE gone; WE'LL see.", "'S 'T 'RE 'VE 'M 'LL 'D",
    "''s'''t", "a'sb", "1's", " 's", "'", "''", "' s", "x'll'll've", "1234567890", "1 12 123 1234 12345 123456 1234567",
    "²³1234²12", "１２３４５６", "12三45", "3.14e-10", "1_000_000", "a1b22c333d4444", "$123,456.78", "  123", "\n\n123", "abc123abc",
    "def f(x):\n    if x > 0:\n        return [i ** 2 for i in range(10)]  # squares\n",
    "int main(void) {\r\n\tprintf(\"%d\\n\", 42);\r\n\treturn 0;\r\n}\r\n", "SELECT * FROM t WHERE a<>'b' AND c!=1;",
    "<html><body class=\"x\">&nbsp;</body></html>", "```python\nprint('hi')\n```", "https://example.org/a_b?c=d&e=%20#f",
    "我爱北京天安门，天安门上太阳升。", "東京は日本の首都です。人口は約1400万人！", "안녕하세요 세계! 반갑습니다.", "ภาษาไทยไม่มีการเว้นวรรค",
    "मैं हिन्दी बोलता हूँ।", "আমি বাংলায় গান গাই", "العربية ١٢٣ من اليمين إلى اليسار،", "שלום עולם, מה נשמע?", "नमस्ते दुनिया",
    "e\u0301\u0302\u0303", "\u0301", " \u0301a", "a\u0301\u200db", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢", "👩‍💻👨‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽", "☺️♥︎", "\ufeffBOM",
    "\u200b\u200b\u200b", "a\u200bb", "\u202eright\u202c", "\u2066x\u2069", "a\u00a0b\u00a0\u00a0c", "\u3000\u3000全角", "x\u2003\u2003y",
    "trailing   ", "   leading", "tabs\t\t\tand\t spaces \t", "line\n\n\n\n\nlines\r\n\r\n\r\nend", "\n" * 40, " " * 100, "\t" * 20,
    "=" * 80, "-" * 33, "a" * 100, "ab" * 60, "\u4e2d" * 50, "🙂" * 20, "!" * 9 + "?" * 9, "▁▁▁", "▁a", "a▁b >▁</", "Ġhello",
    "ÀÉÎõü ßẞ ŒœÆæ ıİ ǅǈ ʰʱ ªº", "ΑΒΓαβγ ἀἁ", "АБВабв ѣ", "ԱԲաբ", "ႠႡაბᲐ", "ᏣᎳᎩ ꮳꮃꭹ", "𐐀𐐨 𝒜𝔅 𞤀𞤢", "ﬀﬁﬓ", "Ａｂｃ　！＂", "µªº",
    "ABCdef GHIjkl mNO", "XMLHttpRequest", "iOS", "McDonald's", "O'Neill'S", "ǅabc", "aあbイc漢", "漢字かなカナ混じり文です", "ㄅㄆㄇ가ㄱ",
    "<s>", "</s>", "<|im_end|>", "<|im_start|>system\nYou are<|im_end|>\n", "<bos>", "<eos>", "<start_of_turn>user\nhi<end_of_turn>\n",
    "<|endoftext|>", "<pad>", "<unk>", "<mask>", "[multimodal]", "<unused42>", "<0x0A>", "<repo_name>x<file_sep>", "<|im_end",
    "a <|im_end|> b  <bos>  c", "<|im_end|><|im_end|>", "<table><tr><td>1</td></tr></table>", "<h1>T</h1>", "<b>x</b>▁</i>",
)  # fmt: skip


def generated(count: int, seed: int = SEED, extra: Sequence[str] = ()) -> Iterator[str]:
    """Mixed texts of 1 to about 30 parts. ``extra`` texts (special tokens, say) are strewn in."""
    source = random.Random(seed)
    for _ in range(count):
        yield "".join(_part(source, extra) for _ in range(source.choice((1, 2, 3, 5, 8, 13, 30))))


def _part(source: random.Random, extra: Sequence[str]) -> str:
    roll = source.random()
    if extra and roll < 0.08:
        return source.choice(extra)
    if roll < 0.5:
        return source.choice(WORDS) + source.choice(("", " ", " ", "\n"))
    if roll < 0.65:
        return source.choice(SPACES)
    if roll < 0.72:
        return "".join(source.choice("0123456789") for _ in range(source.randint(1, 12)))
    if roll < 0.77:
        return source.choice(WORDS)[:1] * source.randint(2, 20)
    if roll < 0.87:
        return "".join(chr(source.randint(32, 126)) for _ in range(source.randint(1, 10)))
    return "".join(_character(source) for _ in range(source.randint(1, 6)))


def _character(source: random.Random) -> str:
    low, high = source.choice(
        ((0, 0x7F), (0x80, 0x24F), (0x250, 0x5FF), (0x600, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0xD7FF), (0xE000, 0xFFFD))
        + ((0x10000, 0x1FFFF), (0x20000, 0x323AF), (0xE0000, 0x10FFFF))
    )
    return chr(source.randint(low, high))

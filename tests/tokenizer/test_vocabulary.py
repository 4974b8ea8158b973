"""The ids of real and synthetic vocabularies equal llama.cpp's, for every rule that is supported."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgeinfer.errors import BadRequest
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.tokenizer import pretokenizers
from edgeinfer.tokenizer.pretokenizers import PRETOKENIZERS
from edgeinfer.tokenizer.specials import Partition
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.tokenizer.oracle import LlamaVocabulary
from tests.tokenizer.strings import HAND, SEED, generated
from tests.tokenizer.synthetic import (
    CONTROL,
    SPECIALS,
    byte_level_metadata,
    byte_pairs_metadata,
    sentence_piece_metadata,
    spaced_metadata,
    write_vocabulary,
)

ROWS = list(dict.fromkeys(PRETOKENIZERS.values()))
LEADERS = [row.names[0] for row in ROWS if not row.spaced]
ALIASES = [name for name, row in PRETOKENIZERS.items() if name != row.names[0] and not row.spaced]
ALL_SETTINGS = tuple(itertools.product((False, True), repeat=2))
PLAIN, SPECIAL = ((False, False),), ((True, True),)
SPACED = [("gemma4", ""), ("gpt2", "gemma4"), ("gpt2", "granite-embed-multi-311m"), ("gpt2", "sarvam-moe")]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[tuple[Tokenizer, LlamaVocabulary]]:
    yield from both_of(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[tuple[Tokenizer, LlamaVocabulary]]:
    yield from both_of(gemma3_path)


def both_of(path: Path) -> Iterator[tuple[Tokenizer, LlamaVocabulary]]:
    with open_gguf(path) as file, LlamaVocabulary(path) as llama:
        yield Tokenizer.from_gguf(file.metadata, path, file.field_offset), llama


Make = Callable[[Mapping[str, object]], tuple[Tokenizer, LlamaVocabulary]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Writes a vocabulary and gives both readings of it."""
    with ExitStack() as stack:

        def made(metadata: Mapping[str, object]) -> tuple[Tokenizer, LlamaVocabulary]:
            path = write_vocabulary(tmp_path / "vocabulary.gguf", metadata)
            ours = Tokenizer.from_gguf(metadata, path)
            return ours, stack.enter_context(LlamaVocabulary(path))

        yield made


def assert_same(
    ours: Tokenizer, llama: LlamaVocabulary, texts: Iterable[str], settings: Sequence[tuple[bool, bool]] = ALL_SETTINGS
) -> None:
    """The same ids for each text and each (special, add_bos)."""
    for text in texts:
        for special, add_bos in settings:
            expected = llama.encode(text, special, add_bos)
            found = ours.encode(text, special, add_bos)
            spelled = not special and any(map(ours.is_control, expected[add_bos and ours.add_bos :]))
            if spelled:  # llama.cpp merges plain text into a control token: never here
                assert not any(map(ours.is_control, found[add_bos and ours.add_bos :])), text
                assert b"".join(map(ours.token_bytes, found)) == b"".join(map(ours.token_bytes, expected)), text
            else:
                assert found == expected, (text, special, add_bos)


def assert_same_tokens(ours: Tokenizer, llama: LlamaVocabulary) -> None:
    assert ours.vocab_size == llama.size
    assert ours.add_bos == llama.add_bos
    assert ours.end_ids == llama.end_ids()
    assert [ours.token_bytes(index) for index in range(llama.size)] == [llama.piece(i) for i in range(llama.size)]


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_5000_strings_give_the_ids_of_llama_cpp(model: str, request: pytest.FixtureRequest) -> None:
    ours, llama = request.getfixturevalue(model)
    print("seed", SEED)
    markers = [
        *list(ours.control_tokens)[:60],
        "\n\n",
        "\t\t",
        "▁▁",
        "<h1>",
        "</table>",
        "[multimodal]",
        "<unused6000>",
    ]
    assert_same(ours, llama, [*HAND, *generated(5000)], (*PLAIN, *SPECIAL))
    assert_same(ours, llama, generated(500, SEED + 1, markers))


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_every_token_and_every_end_is_the_one_of_llama_cpp(model: str, request: pytest.FixtureRequest) -> None:
    ours, llama = request.getfixturevalue(model)
    assert_same_tokens(ours, llama)


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_long_texts_take_no_more_than_seconds(model: str, request: pytest.FixtureRequest) -> None:
    ours, llama = request.getfixturevalue(model)
    for text in (" " * 20_000, "\n" * 20_000, "a" * 20_000, "\u4e2d\u6587" * 10_000, "<" * 20_000):
        begin = time.perf_counter()
        ids = ours.encode(text)
        assert time.perf_counter() - begin < 10
        assert ours.decode(ids) == text
        assert ours.encode(text[:2000]) == llama.encode(text[:2000])


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_no_control_token_comes_out_of_plain_text(model: str, request: pytest.FixtureRequest) -> None:
    ours, _ = request.getfixturevalue(model)
    for text in generated(500, extra=list(ours.control_tokens)):
        assert not any(map(ours.is_control, ours.encode(text)))


@pytest.mark.real_model
def test_text_comes_back_but_for_bytes_that_no_token_holds(smollm2: tuple[Tokenizer, LlamaVocabulary]) -> None:
    ours, _ = smollm2
    absent = bytes(range(256)).translate(None, b"".join(ours.token_bytes(index) for index in range(ours.vocab_size)))
    assert absent == bytes.fromhex("04 06 13 14 16 1d c0 c1 f1 f2 f5 f6 f7 f8 f9 fa fb fc fd fe ff")
    for text in (*HAND, *generated(500)):
        assert ours.decode(ours.encode(text)) == text.encode().translate(None, absent).decode("utf-8", "replace")


@pytest.mark.parametrize("pre", LEADERS)
def test_each_rule_splits_as_llama_cpp_does(pre: str, make: Make) -> None:
    ours, llama = make(byte_level_metadata(pre))
    assert_same_tokens(ours, llama)
    mixed = mixture()
    assert_same(ours, llama, [*HAND, *mixed], PLAIN)  # each call of llama.cpp compiles its patterns: few, long texts
    assert_same(ours, llama, mixed, SPECIAL)


def mixture() -> list[str]:
    parts = list(generated(400, extra=list(SPECIALS)))
    return ["".join(parts[start : start + 16]) for start in range(0, len(parts), 16)]


@pytest.mark.parametrize("pre", ALIASES)
def test_each_alias_is_the_same_rule_in_llama_cpp(pre: str, make: Make) -> None:
    ours, llama = make(byte_level_metadata(pre))
    assert ours.add_bos == llama.add_bos
    assert_same(ours, llama, ["".join(HAND), *mixture()[:4]], PLAIN)


def test_a_file_without_a_rule_gets_the_default_one(make: Make) -> None:
    metadata = byte_level_metadata("default")
    del metadata["tokenizer.ggml.pre"]
    ours, llama = make(metadata)
    assert_same(ours, llama, HAND)


def test_the_strings_tell_all_rules_apart() -> None:
    texts = [*HAND, *mixture()]
    seen: dict[tuple[object, ...], str] = {}
    for pre in LEADERS:
        ours = Tokenizer.from_gguf(byte_level_metadata(pre), "x.gguf")
        ids = (ours.add_bos, *(tuple(ours.encode(text)) for text in texts))
        assert ids not in seen, f"nothing tells {pre} from {seen.get(ids)}"
        seen[ids] = pre


@pytest.mark.parametrize("pre", ["qwen35", "deepseek-v3"])  # between them they ask for L, M, N, P, S and \s
def test_every_character_has_the_category_of_llama_cpp(pre: str, make: Make) -> None:
    ours, llama = make(byte_pairs_metadata(pre))
    assert not [block for block in _blocks() if ours.encode(block) != llama.encode(block)]


def test_an_oniguruma_of_another_unicode_version_is_noticed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretokenizers, "_ADDED_LATER", r"\x{897}")
    ours, llama = make(byte_pairs_metadata("qwen35"))
    assert any(ours.encode(block) != llama.encode(block) for block in _blocks())


def _blocks() -> Iterator[str]:
    """All of Unicode but the inside of long blocks; each character beside a letter, a digit and a sign."""
    planes = (
        range(0x3500),
        range(0x4D80, 0x4E20),
        range(0x9FE0, 0xAC10),
        range(0xD700, 0xD800),
        range(0xF900, 0x12600),
        range(0x13400, 0x14700),
        range(0x16000, 0x17000),
    )
    edges = (
        range(0x18C80, 0x18D10),
        range(0x1AFF0, 0x20000),
        range(0x2A6D0, 0x2A710),
        range(0x2B730, 0x2B830),
        range(0x2EBD0, 0x2EE70),
        range(0x323A0, 0x323C0),
    )
    rest = (range(0x2F800, 0x2FA20), range(0xE0000, 0xE0200), range(0x10FF00, 0x110000))
    codes = itertools.chain(*planes, *edges, *rest)
    while block := list(itertools.islice(codes, 256)):
        yield "".join(f"a{chr(code)}b1{chr(code)}2${chr(code)}%" for code in block)


@pytest.mark.parametrize(("model", "pre"), SPACED)
def test_bpe_on_characters_gives_the_ids_of_llama_cpp(model: str, pre: str, make: Make) -> None:
    ours, llama = make(spaced_metadata(model, pre))
    assert_same_tokens(ours, llama)
    assert_same(ours, llama, [*HAND, *generated(400, extra=list(SPECIALS))])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("space_prefix", [True, False])
def test_scores_with_ties_merge_as_in_llama_cpp(seed: int, space_prefix: bool, make: Make) -> None:
    ours, llama = make(sentence_piece_metadata(seed, space_prefix))
    assert_same_tokens(ours, llama)
    texts = [*HAND, *generated(300, extra=list(SPECIALS))]
    assert_same(ours, llama, texts)
    for text in texts[:200]:
        ids = llama.encode(text, True, True)
        assert ours.decode(ids).encode() == llama.decode(ids).decode("utf-8", "replace").encode()
        assert ours.decode(ids, special=False).encode() == llama.decode(ids, special=False)


@pytest.mark.parametrize("name", ["Phi-3 mini", "phi3", "ModernBERT modern-bert", "Other"])
def test_white_space_beside_special_tokens_goes_where_llama_cpp_drops_it(name: str, make: Make) -> None:
    metadata = {**byte_level_metadata("qwen2"), "general.name": name}
    also = ("<unk>", "<|endoftext|>", "[MASK]")  # llama.cpp refuses a Phi-3 without the first two
    metadata["tokenizer.ggml.tokens"] += also  # type: ignore[operator]
    metadata["tokenizer.ggml.token_type"] += [CONTROL] * len(also)  # type: ignore[operator]
    ours, llama = make(metadata)
    texts = [
        "<think>  a",
        "a  <think>\n\nb<s> c </s> d",
        " <|im_end|>\t <|im_end|> x",
        "<s><s> ",
        "a </s>  ",
        "x <mask> y",
    ]
    assert_same(ours, llama, [*texts, *generated(200, extra=[f"{text} " for text in SPECIALS])])


def test_an_empty_token_is_renamed_as_in_llama_cpp(make: Make) -> None:
    metadata = byte_level_metadata("qwen2")
    tokens = [*metadata["tokenizer.ggml.tokens"], ""]  # type: ignore[misc]
    kinds = [*metadata["tokenizer.ggml.token_type"], CONTROL]  # type: ignore[misc]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    ours, llama = make(metadata)
    assert_same_tokens(ours, llama)
    assert ours.token_text(len(tokens) - 1) == f"[EMPTY_{len(tokens) - 1}]"


def test_a_byte_without_a_token_is_dropped_as_in_llama_cpp(make: Make) -> None:
    metadata = byte_level_metadata("qwen2")
    tokens = list(metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    tokens[tokens.index("#")] = "#gone"
    tokens[tokens.index("Ń")] = "Ńgone"  # byte 0xAD
    merges = [merge for merge in metadata["tokenizer.ggml.merges"] if "#" not in merge and "Ń" not in merge]  # type: ignore[attr-defined]
    ours, llama = make({**metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges})
    assert_same(ours, llama, ["a#b", "##", "\u00ada\u00ad", "#include <x>"])


def test_a_word_that_spells_a_control_token_by_merges_stays_text(make: Make) -> None:
    metadata = byte_level_metadata("gpt-2")
    merges: list[str] = metadata["tokenizer.ggml.merges"]  # type: ignore[assignment]
    word = next(merge.replace(" ", "") for merge in merges if merge.replace(" ", "").isascii())
    index = metadata["tokenizer.ggml.tokens"].index(word)  # type: ignore[attr-defined]
    kinds = list(metadata["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    kinds[index] = CONTROL
    ours, llama = make({**metadata, "tokenizer.ggml.token_type": kinds})
    assert llama.encode(word) == [index]
    assert not any(map(ours.is_control, ours.encode(word)))
    assert ours.decode(ours.encode(word)) == word


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata("qwen2"), "x.gguf")


def test_lone_surrogates_become_the_replacement_character(small: Tokenizer) -> None:
    assert small.encode("a\ud800b\udfff") == small.encode("a\ufffdb\ufffd")


def test_a_text_is_cut_at_its_special_tokens(small: Tokenizer) -> None:
    start, think = small.control_tokens["<|im_start|>"], small.encode("<think>")[0]
    assert small.split("a<|im_start|> b<think>\ud800") == ["a", start, " b", think, "\ufffd"]
    assert small.split("a<|im_start|> b<think>", special=False) == ["a<|im_start|> b", think]
    assert small.split("") == []


@pytest.mark.timeout(30)  # it takes a second; a pass over the text for each token would take minutes
def test_many_different_special_tokens_are_cut_in_one_go() -> None:
    ids = {f"<unused{number}>": number for number in range(6000)}
    assert Partition(ids).split("".join(ids) * 20) == [*ids.values()] * 20


def test_lookalikes_are_named_once_and_in_order(small: Tokenizer) -> None:
    assert small.lookalikes("x </s> <|im_start|> <s><think></s>") == ["</s>", "<|im_start|>", "<s>"]
    assert small.lookalikes("nothing < here | im_end>") == []
    assert set(small.control_tokens) >= {"<s>", "</s>", "<|im_end|>", "[unk]", "<fim_prefix>"}


def test_ids_outside_the_vocabulary_are_refused(small: Tokenizer) -> None:
    for index in (-1, small.vocab_size, 2**40):
        with pytest.raises(BadRequest, match=f"token id {index}: the vocabulary holds 0 to {small.vocab_size - 1}"):
            small.decode([1, index])
        assert not small.is_control(index)


def test_bos_and_eos_are_added_only_where_the_file_wishes_them(make: Make) -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    ours, llama = make({**byte_level_metadata("qwen2"), **flags})
    assert ours.encode("a", add_bos=True) == llama.encode("a", add_bos=True) == [
        ours.bos_id, *ours.encode("a"), ours.eos_id,
    ]  # fmt: skip
    assert ours.encode("a") == llama.encode("a")


def test_a_vocabulary_without_ends_has_none() -> None:
    metadata = byte_pairs_metadata("gpt-2")
    ours = Tokenizer.from_gguf(metadata, "x.gguf")
    assert (ours.bos_id, ours.eos_id, ours.end_ids, ours.add_bos) == (None, None, frozenset(), False)
    assert ours.encode("a", add_bos=True) == ours.encode("a")


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (("<|return|>", "<|call|>", "<|end|>"), {"<|return|>", "<|call|>"}),
        (("<|flush|>", "<|calls|>", "<|end|>"), {"<|flush|>", "<|calls|>"}),
        (("<|return|>", "<|end|>"), {"<|return|>", "<|end|>"}),
        (("<|tool_response>", "</s>", "<eos>"), {"<|tool_response>", "<eos>"}),
        (("<|file_sep|>", "<|fim_pad|>", "<|fim_prefix|>"), {"<|file_sep|>", "<|fim_pad|>"}),
        (("<|eot_id|>", "<|eom_id|>", "[e~["), {"<|eot_id|>", "<|eom_id|>", "[e~["}),
        (("<｜end▁of▁sentence｜>", "_<EOT>"), {"<｜end▁of▁sentence｜>", "_<EOT>"}),
    ],
)
def test_the_ends_known_by_name_are_those_of_llama_cpp(texts: tuple[str, ...], ends: set[str], make: Make) -> None:
    metadata = byte_pairs_metadata("gpt-2")
    tokens = [*metadata["tokenizer.ggml.tokens"], *texts]  # type: ignore[misc]
    ids = {text: tokens.index(text) for text in texts}
    eos = ids[min(ends)]
    ours, llama = make({**metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": eos})
    assert ours.end_ids == llama.end_ids() == {ids[text] for text in ends}
    assert not set(texts) - ours.control_tokens.keys()

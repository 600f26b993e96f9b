"""Translation over real tokenizers: nothing is lost, nothing is guessed twice, nothing depends on
the pieces.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.unit.text.vocabulary import real
from tests.unit.text.vocabulary.real import random_text

from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.retokenizer import last_split
from headstart.text.vocabulary.table import VocabTable, num_incomplete
from headstart.text.vocabulary.templates import find_replacements
from headstart.text.vocabulary.translated_sequence import TranslatedSequence
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator, prefix_search

PAIRS = [
    ("demo-target", "demo-draft-other"),
    ("demo-draft-other", "demo-target"),
    ("qwen2", "llama-bpe"),
    ("llama-bpe", "gemma-4"),
    ("gemma-4", "llama-spm"),
    ("llama-spm", "qwen2"),
    ("gpt-2", "demo-target"),
    ("phi-3", "deepseek-llm"),
    ("deepseek-coder", "phi-3"),
    ("deepseek-llm", "gpt-2"),
]


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}", scope="module")
def translator(request: pytest.FixtureRequest) -> VocabularyTranslator:
    target, draft = request.param
    if not (target + draft).startswith("demo") and not real.has_fetched():
        pytest.skip(f"no vocabularies in {real.fetched_folder()}; run python tests/fetch_vocabs.py")
    return real.translator(target, draft)


@pytest.fixture(scope="module")
def demo() -> VocabularyTranslator:
    return real.translator("demo-target", "demo-draft-other")


def in_pieces(tokens: list[int], rng: random.Random) -> Iterator[list[int]]:
    start = 0
    while start < len(tokens):
        size = rng.choice((1, 1, 2, 3, 5, 17))
        yield tokens[start : start + size]
        start += size


def complete(text: bytes) -> bytes:
    return text[: len(text) - num_incomplete(text)]


def all_draft_tokens(sequence: TranslatedSequence, table: VocabTable) -> list[int]:
    """The draft's history with the token that was taken back, without bos."""
    tokens = [*sequence.draft_history, *([] if sequence.healed is None else [sequence.healed])]
    return tokens[1:] if table.add_bos else tokens


def test_history_in_random_pieces_keeps_every_byte_and_is_what_the_draft_tokenizer_says(translator):
    rng = random.Random(1)
    num_steps = num_canonical = 0
    for _ in range(8):
        text = random_text(rng)
        tokens = list(translator.target_encoder.encode(text))
        sequence, done = real.sequence(translator), b""
        before = list(sequence.draft_history)
        for piece in in_pieces(tokens, rng):
            sequence.num_stable = len(before)
            sequence.extend(piece)
            done += translator.target.join(piece)
            assert translator.draft.join(sequence.draft_history) + sequence.pending == done
            assert sequence.draft_history[: sequence.num_stable] == before[: sequence.num_stable]
            before = list(sequence.draft_history)
            num_steps += 1
            anew = list(translator.draft_encoder.encode(complete(done)))
            num_canonical += all_draft_tokens(sequence, translator.draft) == anew
        assert done == text
    assert num_canonical >= 0.99 * num_steps  # measured: all


def test_draft_to_target_loses_nothing_and_continues_the_targets_own_tokens(translator) -> None:
    rng = random.Random(2)
    num_drafts = num_canonical = 0
    for _ in range(12):
        text = random_text(rng)
        tokens = list(translator.target_encoder.encode(text))
        cut = rng.randrange(len(tokens) + 1)
        sequence = real.sequence(translator)
        sequence.extend(tokens[:cut])
        done = translator.target.join(tokens[:cut])
        rest = text[len(done) :][: rng.randrange(1, 40)]
        translated = sequence.translate(
            list(translator.draft_encoder.encode(sequence.pending + rest))
        )
        assert done + translator.target.join(translated) == max(
            done, complete(done + rest), key=len
        )
        num_right = common_prefix_length(translated, tokens[cut:])
        right = translator.target.join([*tokens[:cut], *translated[:num_right]])
        whole = complete(done + rest)
        num_drafts += 1
        num_canonical += len(right) >= last_split(whole, len(whole), translator.target.word_ends)
    assert num_canonical >= 0.99 * num_drafts  # measured: all


def test_truncated_history_equals_a_fresh_one(translator: VocabularyTranslator) -> None:
    rng = random.Random(3)
    for _ in range(6):
        tokens = list(translator.target_encoder.encode(random_text(rng)))
        sequence = real.sequence(translator)
        for piece in in_pieces(tokens, rng):
            sequence.extend(piece)
        before = list(sequence.draft_history)
        length = rng.randrange(len(tokens) + 1)
        sequence.num_stable = len(before)
        sequence.truncate(length)
        fresh = real.sequence(translator)
        fresh.extend(tokens[:length])
        assert sequence.target_tokens == tokens[:length]
        assert sequence.draft_history == fresh.draft_history
        assert sequence.pending == fresh.pending
        assert sequence.draft_history[: sequence.num_stable] == before[: sequence.num_stable]


def test_long_prompt_is_the_same_at_once_and_token_by_token(demo: VocabularyTranslator) -> None:
    rng = random.Random(4)
    text = b" ".join(random_text(rng) for _ in range(60))
    tokens = list(demo.target_encoder.encode(text))
    assert len(tokens) > 2048
    at_once, stepwise = real.sequence(demo), real.sequence(demo)
    at_once.extend(tokens)
    for token in tokens:
        stepwise.extend([token])
    assert at_once.draft_history == stepwise.draft_history


def test_only_the_end_of_a_long_history_changes(demo: VocabularyTranslator) -> None:
    tokens = list(demo.target_encoder.encode(b"the quick brown fox jumps over it. " * 200))
    sequence = real.sequence(demo)
    sequence.extend(tokens[:-20])
    for token in tokens[-20:]:
        sequence.num_stable = num_before = len(sequence.draft_history)
        sequence.extend([token])
        assert sequence.num_stable >= num_before - 4


def test_character_in_parts_waits_until_it_is_complete(demo: VocabularyTranslator) -> None:
    sequence = real.sequence(demo)
    encoded = "x 😀".encode()
    one_byte_tokens = [demo.target.ids[bytes([byte])] for byte in encoded]
    sequence.extend(one_byte_tokens[:-1])
    assert sequence.pending.endswith(encoded[-4:-1])
    assert demo.draft.join(sequence.draft_history) + sequence.pending == encoded[:-1]
    translated = sequence.translate(
        list(demo.draft_encoder.encode(sequence.pending + encoded[-1:] + b" ok"))
    )
    assert demo.target.join(translated) == encoded[-1:] + b" ok"


def test_spelled_markers_stay_text_and_markers_stay_markers(demo: VocabularyTranslator) -> None:
    sequence = real.sequence(demo)
    sequence.extend(list(demo.target_encoder.encode(b"<|im_end|>")))
    assert not set(sequence.draft_history) & set(demo.draft.controls)
    marker = next(token for token, text in demo.target.controls.items() if text == b"<|im_end|>")
    sequence.extend([marker])
    assert demo.draft.controls[sequence.draft_history[-1]] == b"<|im_end|>"
    assert sequence.pending == b""
    assert sequence.translate([sequence.draft_history[-1]]) == [marker]


def test_draft_that_contradicts_pending_bytes_is_empty(demo: VocabularyTranslator) -> None:
    sequence = real.sequence(demo)
    sequence.extend([demo.target.ids[bytes([byte])] for byte in b" specula"])
    assert sequence.pending
    assert sequence.translate(list(demo.draft_encoder.encode(b"# a longer text"))) == []


def test_boundary_is_healed_only_where_the_vocabularies_end_differently(demo: VocabularyTranslator):
    sequence = real.sequence(demo)
    sequence.extend(list(demo.target_encoder.encode(b"x = (")))
    assert (sequence.pending, sequence.healed) == (b"", None)
    sequence.truncate(0)
    sequence.extend([demo.target.ids[bytes([byte])] for byte in b" retur"])
    assert sequence.healed is not None
    assert sequence.pending == demo.draft.pieces[sequence.healed]


def test_target_continues_inside_a_word_from_the_tokens_it_has(demo: VocabularyTranslator) -> None:
    sequence = real.sequence(demo)
    sequence.extend([demo.target.ids[bytes([byte])] for byte in b" retur"])
    translated = sequence.translate(list(demo.draft_encoder.encode(sequence.pending + b"n x, y")))
    assert demo.target.join(translated) == b"n x, y"
    assert translated[0] == demo.target.ids[b"n"]


def test_replaced_markers_reach_the_draft_and_a_started_marker_waits() -> None:
    pairs = (
        ("<|im_start|>user\n", "<|fim_prefix|>U: "),
        ("<|im_start|>assistant\n", "<|fim_middle|>"),
    )
    target = real.vocab("demo-target")
    translator = VocabularyTranslator(target, real.vocab("demo-draft-other"), pairs)
    sequence = real.sequence(translator)
    tokens = target.tokenize(
        "<|im_start|>user\nhi<|im_start|>assistant\nyes", add_special=False, parse_special=True
    )
    num_until_name = tokens.index(tokens[0], 1) + 1
    sequence.extend(tokens[:num_until_name])
    assert not sequence.can_draft
    sequence.extend(tokens[num_until_name:])
    assert sequence.can_draft
    history = [*sequence.draft_history, *([] if sequence.healed is None else [sequence.healed])]
    assert (
        b"".join(translator.draft.spelling(token) for token in history)
        == b"<|fim_prefix|>U: hi<|fim_middle|>yes"
    )


def test_spelled_replacement_source_stays_text() -> None:
    target = real.vocab("demo-target")
    options = (("<|im_start|>user\n", "<|fim_prefix|>"),)
    translator = VocabularyTranslator(target, real.vocab("demo-draft-other"), options)
    sequence = real.sequence(translator)
    text = b"<|im_start|>user\nhi"
    sequence.extend(target.tokenize(text, add_special=False, parse_special=False))
    assert translator.draft.join(sequence.draft_history) + sequence.pending == text


@pytest.mark.skipif(not real.has_fetched(), reason="run python tests/fetch_vocabs.py")
def test_chat_of_one_family_becomes_the_chat_of_another() -> None:
    pairs = tuple(find_replacements("<|im_start|>", "<|start_header_id|>"))
    target = real.vocab("qwen2")
    translator = VocabularyTranslator(target, real.vocab("llama-bpe"), pairs)
    sequence = real.sequence(translator)
    chat = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
    sequence.extend(target.tokenize(chat, add_special=False, parse_special=True))
    history = b"".join(map(translator.draft.spelling, sequence.draft_history)) + sequence.pending
    assert history == (
        b"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        b"<|start_header_id|>assistant<|end_header_id|>\n\nHello"
    )
    end = next(token for token, text in translator.draft.controls.items() if text == b"<|eot_id|>")
    drafted = sequence.translate(
        [*translator.draft_encoder.encode(sequence.pending + b" there"), end]
    )
    assert b"".join(map(translator.target.spelling, drafted)) == b" there<|im_end|>"


@pytest.mark.parametrize("seed", range(20))
def test_ranges_equal_a_scan_of_all_tokens(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = b"ab\xfe\xff"
    pieces = [bytes(rng.choices(alphabet, k=rng.randrange(5))) for _ in range(60)]
    search = prefix_search(pieces)
    for _ in range(40):
        text = bytes(rng.choices(alphabet, k=rng.randrange(5)))
        assert sorted(search(text).tolist()) == [
            token
            for token, piece in enumerate(pieces)
            if piece and (piece.startswith(text) or text.startswith(piece))
        ]


def test_any_choice_among_the_allowed_tokens_spells_the_pending_bytes() -> None:
    translator = real.translator("demo-target", "demo-draft-other")
    rng = random.Random(1)
    for pending in (b" return", b"\n        x", "中文".encode(), "😀".encode()[:3], b"\xff\x80"):
        for _ in range(10):
            rest, spelled = pending, b""
            while rest:
                piece = translator.draft.pieces[rng.choice(translator.allowed(rest).tolist())]
                spelled += piece
                rest = rest[len(piece) :]
            assert spelled.startswith(pending)

"""POST /infill: prompts from the two sides of a cursor, as editors send them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.server.fake_worker import INFO, FakeWorker
from tests.server.serving import error_of, events_of, served_model, serving

from headstart.server.infill import infill_prompt
from headstart.server.schemas import InfillBody, InfillExtra
from headstart.server.service import ServedModel
from headstart.testing import ByteVocab
from headstart.types import FimTokens
from headstart.types.report import WorkerInfo

PRE, SUF, MID, REPO, FILE, BOS = 258, 259, 260, 261, 262, 257
FIELDS = [
    "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
    "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
    "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached",
]  # fmt: skip
LLAMA_VIM = {
    "id_slot": 0, "input_prefix": "def f():\n", "input_suffix": "\n", "prompt": "    ret",
    "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}], "n_predict": 128,
    "stop": [],
    "n_indent": 4, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"],
    "stream": False, "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
    "response_fields": FIELDS,
}  # fmt: skip


class FillingVocab(ByteVocab):
    """Bytes and the three markers that filling in needs."""

    size = 263
    fim = FimTokens(prefix=PRE, suffix=SUF, middle=MID)

    def token_text(self, token: int) -> bytes:
        return super().token_text(token) if token < PRE else f"<{token}>".encode()


class RepositoryVocab(FillingVocab):
    """The same with markers for other files."""

    fim = replace(FillingVocab.fim, repository=REPO, file=FILE)


class StartVocab(RepositoryVocab):
    add_bos = True


def model_of(vocab: ByteVocab) -> ServedModel:
    return replace(served_model(), vocab=vocab)


def prompt_of(vocab: ByteVocab, info: WorkerInfo = INFO, **fields: object) -> list[int]:
    return infill_prompt(
        InfillBody(**{"input_prefix": "a", "input_suffix": "b"} | fields), vocab, info
    )


def test_llama_vims_request_gets_the_fields_it_asks_for_and_no_others():
    worker = FakeWorker()
    with serving(worker, model=model_of(FillingVocab())) as client:
        answer = client.post("/infill", json=LLAMA_VIM).json()
        assert list(answer) == FIELDS
        assert (answer["content"], answer["timings/predicted_n"], answer["truncated"]) == (
            "Höi!",
            4,
            False,
        )
        warm_up = {**LLAMA_VIM, "n_predict": 0, "response_fields": [""]}
        assert client.post("/infill", json=warm_up).json() == {}
    request, warm = worker.requests
    assert request.sampling.samplers == ("top_k", "top_p", "infill")
    assert (request.slot_id, request.max_tokens, request.min_indent, request.max_seconds) == (
        0,
        128,
        4,
        1.0,
    )
    assert (warm.max_tokens, warm.prompt) == (0, request.prompt)


@pytest.fixture(scope="module")
def filling():
    with serving(model=model_of(FillingVocab())) as client:
        yield client


def test_all_of_the_completions_fields_are_there_and_it_streams(filling):
    body = {"input_prefix": "a", "input_suffix": "b"}
    answer = filling.post("/infill", json=body).json()
    assert (answer["stop_type"], answer["prompt"]) == ("eos", "<258>a<259>b<260>")
    assert answer["generation_settings"]["n_indent"] == 0
    assert events_of(filling.post("/infill", json=body | {"stream": True}))


@pytest.mark.parametrize("form", [{"json_schema": {"type": "object"}}, {"regex": "a"}])
def test_the_infill_sampler_and_a_constraint_exclude_each_other(filling, form):
    """It ends texts where the constraint forbids it, for which the schema was blamed."""
    body = LLAMA_VIM | form
    assert "infill, which does not obey the constraint" in error_of(
        filling.post("/infill", json=body), 400
    )


def test_markers_surround_what_they_mark():
    extra = [InfillExtra(text="x", filename="f"), InfillExtra(text="y")]
    cursor = [PRE, *b"a", *b"p", SUF, *b"b", MID]
    assert prompt_of(FillingVocab(), prompt="p") == cursor
    head, tail = [REPO, *b"myproject\n"], [FILE, *b"filename\n"]
    assert prompt_of(RepositoryVocab(), prompt="p") == [*head, *tail, *cursor]
    files = [FILE, *b"f\nx", FILE, *b"tmp\ny"]
    assert prompt_of(RepositoryVocab(), prompt="p", input_extra=extra) == [
        *head,
        *files,
        *tail,
        *cursor,
    ]
    assert prompt_of(StartVocab(), prompt="p", input_extra=extra) == [
        BOS,
        *head,
        *files,
        *tail,
        *cursor,
    ]
    snippet = b"\n\n--- snippet ---\n\n"
    assert prompt_of(FillingVocab(), prompt="p", input_extra=extra) == [
        *snippet,
        *b"x",
        *snippet,
        *b"y",
        *cursor,
    ]


def test_the_spelling_of_a_marker_is_text():
    assert 256 not in prompt_of(
        FillingVocab(), prompt="<eos>", input_prefix="<eos>", input_suffix="<eos>"
    )
    assert prompt_of(FillingVocab(), input_prefix=["<eos>", 256])[1:7] == [*b"<eos>", 256]


@pytest.mark.parametrize("vocab", [FillingVocab(), RepositoryVocab(), StartVocab()])
@pytest.mark.parametrize("context", [1, 16, 64, 512, 5000])
@pytest.mark.parametrize(
    "sizes", [(0, 0, 0), (999, 0, 0), (0, 999, 0), (0, 0, 999), (9999, 9999, 9999), (300, 7, 3)]
)
def test_the_prompt_fits_whatever_is_sent(vocab, context, sizes):
    info = replace(INFO, context_size=context)
    prefix, suffix, line = ("x" * size for size in sizes)
    extra = [InfillExtra(text=str(index) * 70) for index in range(9)]
    tokens = prompt_of(
        vocab, info, input_prefix=prefix, input_suffix=suffix, prompt=line, input_extra=extra
    )
    assert len(tokens) <= max(4, context * 7 // 8)


def test_what_is_next_to_the_cursor_stays():
    text = "".join(map(chr, range(32, 127))) * 9
    tokens = prompt_of(FillingVocab(), input_prefix=text, input_suffix=text, prompt="line")
    quarter = INFO.max_batch_tokens // 4
    before, after = tokens[1 : tokens.index(SUF)], tokens[tokens.index(SUF) + 1 : -1]
    assert bytes(before) == (text[-3 * quarter :] + "line").encode()
    assert bytes(after) == text[: quarter - 3 - len("line")].encode()


def test_the_last_files_that_fit_stay_whole_and_a_prompt_begins_as_the_one_before_it():
    extra = [InfillExtra(text=str(index) * 70) for index in range(9)]
    prompts = [
        prompt_of(
            RepositoryVocab(),
            input_prefix="x" * 999,
            prompt="y" * size,
            input_extra=extra,
            n_predict=limit,
        )
        for size, limit in ((0, 0), (3, 128), (30, 128))
    ]
    begins = [tokens[: tokens.index(SUF)] for tokens in prompts]
    assert begins[1] == [*begins[0], *b"yyy"]
    assert begins[2] == [*begins[0], *b"y" * 30]
    counts = [prompts[0].count(ord(str(index))) for index in range(9)]
    assert counts == [0] * 7 + [70] * 2


@pytest.mark.parametrize(
    ("fim", "missing"),
    [
        (FimTokens(), "prefix and the suffix and the middle"),
        (FimTokens(prefix=1, suffix=2, file=3), "for the middle"),
    ],
)
def test_a_vocabulary_without_markers_cannot_fill_in(fim, missing):
    vocab = FillingVocab()
    vocab.fim = fim
    with serving(model=model_of(vocab)) as client:
        response = client.post("/infill", json=LLAMA_VIM)
        assert response.status_code == 501
        assert response.json()["error"]["type"] == "not_supported_error"
        assert missing in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"input_prefix": None}, "input_prefix is required"),
        ({"input_suffix": None}, "input_suffix is required"),
        ({"input_suffix": 1.5}, "input_suffix must be a text"),
        ({"input_prefix": [999]}, "input_prefix holds token id 999"),
        ({"prompt": ["a"]}, "prompt is ['a'] but must be a text"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra.0.text is required"),
        ({"input_extra": "a"}, "input_extra"),
        ({"samplers": ["infill"]}, "put top_k before it"),
        ({"samplers": ["infill", "top_k"]}, "put top_k before it"),
        ({"top_k": 0}, "top_k from 1 to 256 (it is 0)"),
    ],
)
def test_wrong_fields_are_named(filling, change, says):
    assert says in error_of(filling.post("/infill", json=LLAMA_VIM | change), 400)

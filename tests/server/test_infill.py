"""POST /infill: prompts from the two sides of a cursor; and OpenAI's text completions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from tests.models import tiny_llama
from tests.server.fake_worker import INFO, FakeWorker
from tests.server.serving import (
    error_of,
    events_of,
    openai_of,
    served_model,
    serving,
    serving_models,
)

from headstart.config import (
    Config,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.server.infill import infill_prompt
from headstart.server.schemas import InfillBody, InfillExtra
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


def prompt_of(vocab: ByteVocab, info: WorkerInfo = INFO, **fields: object) -> list[int]:
    return infill_prompt(
        InfillBody(**{"input_prefix": "a", "input_suffix": "b"} | fields), vocab, info
    )


def test_llama_vims_request_gets_the_fields_it_asks_for_and_no_others():
    worker = FakeWorker()
    with serving(worker, model=served_model(vocab=FillingVocab())) as client:
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
    with serving(model=served_model(vocab=FillingVocab())) as client:
        yield client


def test_all_of_the_completions_fields_are_there_and_it_streams(filling):
    body = {"input_prefix": "a", "input_suffix": "b"}
    answer = filling.post("/infill", json=body).json()
    assert (answer["stop_type"], answer["prompt"]) == ("eos", "<258>a<259>b<260>")
    assert answer["generation_settings"]["n_indent"] == 0
    assert events_of(filling.post("/infill", json=body | {"stream": True}))


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
    with serving(model=served_model(vocab=vocab)) as client:
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


PROMPT = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100] * 5


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "model.gguf")
    config = Config(
        model=ModelConfig(model=str(path)),
        engine=EngineConfig(gpu_layers=0, threads=1, context=512, exact=True),
        scheduler=SchedulerConfig(parallel=2, prefill_chunk=16),
    )
    with serving_models(config) as client, openai_of(client) as sdk:
        yield sdk


def test_a_prompts_tokens_are_as_likely_as_when_they_are_generated(sdk: Any) -> None:
    said = sdk.completions.create(
        model="m", prompt=PROMPT, max_tokens=20, temperature=0, logprobs=2,
        extra_body={"return_tokens": True, "ignore_eos": True},
    ).choices[0]  # fmt: skip
    whole = [*PROMPT, *said.model_extra["tokens"]]
    for stream in (False, True):
        answer = sdk.completions.create(
            model="m", prompt=whole, echo=True, logprobs=2, max_tokens=0, stream=stream
        )
        choices = [c.choices[0] for c in answer] if stream else answer.choices
        echoed = next(choice for choice in choices if choice.logprobs)
        scores = echoed.logprobs
        assert len(scores.tokens) == len(scores.token_logprobs) == len(whole)
        assert scores.token_logprobs[0] is None
        assert scores.token_logprobs[len(PROMPT) :] == pytest.approx(
            said.logprobs.token_logprobs, abs=1e-3
        )
        assert scores.top_logprobs[len(PROMPT)] == pytest.approx(
            said.logprobs.top_logprobs[0], abs=1e-3
        )
        assert [one["id"] for one in scores.model_extra["content"]] == whole


def test_the_answers_tokens_follow_those_of_the_prompt(sdk: Any) -> None:
    wish = {"model": "m", "prompt": PROMPT, "temperature": 0, "logprobs": 1}
    plain = sdk.completions.create(**wish, max_tokens=5).choices[0]
    echoed = sdk.completions.create(**wish, max_tokens=5, echo=True).choices[0]
    assert echoed.text.endswith(plain.text)
    assert echoed.logprobs.tokens[len(PROMPT) :] == plain.logprobs.tokens
    assert echoed.logprobs.token_logprobs[len(PROMPT) :] == pytest.approx(
        plain.logprobs.token_logprobs, abs=1e-3
    )


def test_a_stream_names_the_slot_that_works(sdk: Any) -> None:
    url = str(sdk.base_url).removesuffix("v1/")
    body = {"prompt": "the", "n_predict": 4, "stream": True, "id_slot": -1}
    with httpx2.Client(base_url=url, trust_env=False) as client:
        lines = client.post("/completion", json=body).text.splitlines()
    slots = {part.split(",")[0] for line in lines for part in line.split('"id_slot":')[1:]}
    assert slots in ({"0"}, {"1"})


def test_a_suffix_asks_for_what_comes_before_it() -> None:
    worker = FakeWorker()
    with serving(worker, model=served_model(vocab=FillingVocab())) as client:
        answer = client.post(
            "/v1/completions", json={"prompt": ["ab", "c"], "suffix": "yz", "echo": True}
        ).json()
    assert [list(request.prompt) for request in worker.requests] == [
        [PRE, *b"ab", SUF, *b"yz", MID],
        [PRE, *b"c", SUF, *b"yz", MID],
    ]
    assert [choice["text"] for choice in answer["choices"]] == ["abHöi!", "cHöi!"]


def test_what_cannot_be_done_is_refused(client: httpx2.Client) -> None:
    filled = client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert (filled.status_code, filled.json()["error"]["type"]) == (501, "not_supported_error")
    body = {"prompt": "a", "echo": True, "logprobs": 1, "post_sampling_probs": True}
    scored = client.post("/v1/completions", json=body)
    assert "nothing of the prompt was sampled" in error_of(scored, 400, "not_supported_error")


def test_best_of_has_no_effect_as_in_llama_server(client: httpx2.Client) -> None:
    best = client.post("/v1/completions", json={"prompt": "a", "n": 2, "best_of": 3}).json()
    assert len(best["choices"]) == 2


def test_the_lowest_priority_gets_the_next_slot_whatever_the_api() -> None:
    config = Config(
        engine=EngineConfig(gpu_layers=0, threads=1, context=2048),
        scheduler=SchedulerConfig(parallel=1, context_shift=True),
        speculation=SpeculationConfig(spec="off"),
        server=ServerConfig(metrics=True),
    )
    messages = [{"role": "user", "content": "a"}]
    bodies = {
        "/completion": {"prompt": "a", "n_predict": 64, "priority": 7},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 64, "priority": -3},
        "/v1/completions": {"prompt": "a", "max_tokens": 64},
        "/v1/messages": {"messages": messages, "max_tokens": 64, "priority": 2},
    }
    ended = list[str]()
    with serving_models(config) as client, ThreadPoolExecutor() as pool:

        def ask(path: str) -> None:
            assert client.post(path, json=bodies[path] | {"ignore_eos": True}).status_code == 200
            ended.append(path)

        endless = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/completion", json=endless) as busy:
            lines = busy.iter_lines()  # the stream ends with this
            next(lines)
            asked = [pool.submit(ask, path) for path in bodies]
            while "requests_deferred 4" not in client.get("/metrics").text:
                assert not any(one.done() for one in asked)
        for one in asked:
            one.result()
    assert ended == ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/completion"]

"""Embeddings and reranking over HTTP: OpenAI's client, llama-server's forms, real tiny models."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from tests.models import tiny_bert
from tests.server.conftest import embedding_config
from tests.server.fake_worker import INFO, FakeWorker
from tests.server.serving import error_of, openai_of, served_model, serving, serving_models

from headstart.config import EmbeddingConfig
from headstart.server.embeddings import normalize
from headstart.types.report import EmbeddingInfo
from headstart.types.request import EmbeddingEvent, EmbeddingRequest

TEXTS = ["the hill", "x and y", "an other text"]


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    path = tiny_bert(tmp_path_factory.mktemp("model") / "ranker.gguf", ranks=True)
    with serving_models(embedding_config(path, EmbeddingConfig(rerank=True))) as client:
        yield client


def vectors_of(client: httpx2.Client, **body: object) -> np.ndarray:
    answer = client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return np.array([one["embedding"] for one in answer.json()["data"]])


def test_openais_client_gets_vectors_of_length_1(embedding: httpx2.Client) -> None:
    with openai_of(embedding) as sdk:
        packed = sdk.embeddings.create(model="any", input=TEXTS)  # base64, unless told otherwise
        plain = sdk.embeddings.create(model="any", input=TEXTS, encoding_format="float")
        short = sdk.embeddings.create(model="any", input=TEXTS[0], dimensions=8)
    assert [one.index for one in packed.data] == [0, 1, 2]
    for one, other in zip(packed.data, plain.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, rtol=1e-6)
        assert np.linalg.norm(one.embedding) == pytest.approx(1)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == 22
    assert packed.model == "any"
    assert len(short.data[0].embedding) == 8
    assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"prompt_string": "the hill"}, "the hill"),
        ({"content": [{"type": "text", "text": "the "}, {"type": "text", "text": "hill"}]},
         "the hill"),
        (["the hill", {"prompt_string": "x"}], ["the hill", "x"]),
        ([[5, 6, 7]], [5, 6, 7]),
        ([[5, "x"], [6]], [[5, 120], [6]]),
    ],
)  # fmt: skip
def test_an_input_has_several_forms(embedding: httpx2.Client, given: object, same: object) -> None:
    np.testing.assert_allclose(
        vectors_of(embedding, input=given), vectors_of(embedding, input=same), rtol=1e-4, atol=1e-6
    )


def test_llama_servers_own_form_has_a_list_of_vectors(embedding: httpx2.Client) -> None:
    (answer,) = embedding.post("/embedding", json={"content": TEXTS[0]}).json()
    (vector,) = answer["embedding"]
    np.testing.assert_allclose(vector, vectors_of(embedding, input=TEXTS[0])[0], rtol=1e-6)
    assert answer["index"] == 0
    raw = embedding.post("/embeddings", json={"input": TEXTS[0], "embd_normalize": -1}).json()
    assert np.linalg.norm(raw[0]["embedding"]) != pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, '"input" or "content" must be provided'),
        ({"input": []}, 400, "must not be empty"),
        ({"input": ""}, 400, "cannot be empty"),
        ({"input": {"content": "text"}}, 400, "must be a list of parts"),
        ({"input": {"content": [{"type": "input_file"}]}}, 400, "part of type"),
        ({"input": {"content": [{"type": "image_url", "image_url": "a"}]}}, 500, "reads text only"),
        ({"input": [12.5]}, 400, "must be a text"),
        ({"input": "a" * 20_000}, 400, r"input \(20000 tokens\) is too large .* --ubatch"),
        ({"input": ["a", "a" * 600]}, 400, r"input 1 \(600 .* \(current batch size: 512\)"),
        ({"input": ["a"] * 2049}, 400, "holds 2049 texts but at most 2048"),
        ({"input": [[999999]]}, 400, "token id 999999"),
        ({"input": "a", "encoding_format": "hex"}, 400, "must be 'float' or 'base64'"),
        ({"input": "a", "embd_normalize": -2}, 400, "embd_normalize is -2"),
        ({"input": "a", "dimensions": 33}, 400, "from 1 to 32"),
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_is_refused(embedding: httpx2.Client, body, status, words) -> None:
    answer = embedding.post("/v1/embeddings", json=body)
    assert answer.status_code == status
    assert re.search(words, answer.json()["error"]["message"])


def test_an_encoder_generates_no_text(embedding: httpx2.Client) -> None:
    for path, body in (
        ("/completion", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        answer = embedding.post(path, json=body)
        assert "bert models compute embeddings" in error_of(answer, 501, "not_supported_error")
    assert embedding.get("/props").status_code == embedding.get("/metrics").status_code == 200
    assert "headstart_embedded_tokens_total" in embedding.get("/metrics").text


def test_texts_are_embedded_where_64_do_not_divide_a_batch(tmp_path: Path) -> None:
    config = embedding_config(tiny_bert(tmp_path / "bert.gguf"), EmbeddingConfig(embeddings=True))
    engine = dataclasses.replace(config.engine, ubatch=300)
    with serving_models(dataclasses.replace(config, engine=engine)) as client:
        answer = client.post("/v1/embeddings", json={"input": TEXTS * 50}).json()
        assert len(answer["data"]) == 150


def test_embedded_tokens_are_counted_as_those_of_prompts(embedding: httpx2.Client) -> None:
    def number(name: str = "prompt_tokens_total") -> float:
        lines = embedding.get("/metrics").text.splitlines()
        return next(float(x.split()[1]) for x in lines if x.startswith(f"llamacpp:{name}"))

    before = number()
    embedding.post("/v1/embeddings", json={"input": "hello"}).raise_for_status()
    while number() == before:  # reports come 0.25 s apart
        time.sleep(0.05)
    assert number() == before + 5
    assert number("n_decode_total") > 0


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"])
def test_documents_are_ordered_by_score(ranking: httpx2.Client, path: str) -> None:
    answer = ranking.post(path, json={"query": "the hill", "documents": TEXTS}).json()
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in answer["results"]) == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 22
    best = ranking.post(path, json={"query": "the hill", "documents": TEXTS, "top_n": 1}).json()
    assert best["results"] == answer["results"][:1]


def test_with_texts_the_answer_is_a_list(ranking: httpx2.Client) -> None:
    body = {"query": "the hill", "texts": TEXTS, "return_text": True}
    answer = ranking.post("/rerank", json=body).json()
    assert [one["text"] for one in answer] == [TEXTS[one["index"]] for one in answer]
    assert answer[0]["score"] >= answer[-1]["score"]


@pytest.mark.parametrize(
    "body",
    [
        {"documents": TEXTS},
        {"query": 3, "documents": TEXTS},
        {"query": "a"},
        {"query": "a", "documents": []},
        {"query": "a", "documents": 123},
        {"query": "a", "documents": [1, 2]},
        {"query": "a", "documents": ["b"], "top_n": -1},
        {"query": "a" * 400, "documents": ["b" * 200]},
    ],
)
def test_what_cannot_be_ranked_is_refused(ranking: httpx2.Client, body: dict[str, object]) -> None:
    answer = ranking.post("/rerank", json=body)
    assert answer.status_code == 400, answer.text


def test_an_empty_pair_is_refused_where_the_vocabulary_has_no_marks() -> None:
    worker = FakeWorker()
    worker.info_when_ready = dataclasses.replace(INFO, embedding=EmbeddingInfo(1, 64, "rank"))
    with serving(worker) as client:
        answer = client.post("/rerank", json={"query": "", "documents": ["a", ""]})
    assert "cannot be empty" in error_of(answer, 400)
    assert not worker.requests


def test_a_query_that_names_the_place_of_the_document_stays_as_it_is() -> None:
    texts = list[str]()

    def script(request: EmbeddingRequest) -> list[EmbeddingEvent]:
        texts.extend("".join(map(chr, text)) for text in request.texts)
        return [EmbeddingEvent(request.request_id, (np.ones((1, 1), np.float32),), 1, 0.1)]

    worker = FakeWorker(script)  # type: ignore[arg-type]
    worker.info_when_ready = dataclasses.replace(INFO, embedding=EmbeddingInfo(1, 64, "rank"))
    with serving(worker, model=served_model(pair_template="{query}: {document}.")) as client:
        body = {"query": "{document}?", "documents": ["{query}!"]}
        client.post("/rerank", json=body).raise_for_status()
    assert texts == ["{document}?: {query}!."]


def test_other_servers_say_what_to_start_with(client, ranking, embedding) -> None:
    for one, path, flag in (
        (client, "/v1/embeddings", "--embeddings"),
        (client, "/embedding", "--embeddings"),
        (client, "/rerank", "--reranking"),
        (embedding, "/rerank", "--reranking"),
        (ranking, "/v1/embeddings", "without `--rerank`"),
    ):
        answer = one.post(path, json={"input": "a"})
        assert flag in error_of(answer, 501, "not_supported_error")


def test_without_pooling_there_is_a_vector_for_each_token() -> None:
    def script(request: EmbeddingRequest) -> list[EmbeddingEvent]:
        num, rows = request.num_tokens, np.ones((request.num_tokens, 2), np.float32)
        name, parts = request.request_id, (rows[:1], rows[1:2], rows[2:])  # of long texts
        return [
            EmbeddingEvent(name, parts[:1], num, 0.1, is_last=False),
            EmbeddingEvent(name, parts[1:], num, 0.1),
        ]

    worker = FakeWorker(script)  # type: ignore[arg-type]
    worker.info_when_ready = dataclasses.replace(INFO, embedding=EmbeddingInfo(2, 64, "none"))
    with serving(worker) as client:
        for texts in (["abc"], ["ab", "cdef"]):
            answers = client.post("/embeddings", json={"input": texts}).json()
            assert [len(one["embedding"]) for one in answers] == list(map(len, texts))
            assert {number for one in answers for row in one["embedding"] for number in row} == {1}
        refused = client.post("/v1/embeddings", json={"input": "abc"})
    assert "not OAI compatible" in error_of(refused, 400)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (-1, [3, -4]),
        (0, [24570, -32760]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_vectors_are_scaled_as_llama_server_does(kind: int, expected: list[float]) -> None:
    found = normalize(np.array([[3, -4], [0, 0]], np.float32), kind)
    np.testing.assert_allclose(found, [expected, [0, 0]], rtol=1e-6)

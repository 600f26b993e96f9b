"""The real OpenAI client against our chat and completion routes."""

from __future__ import annotations

import openai
import pytest
from tests.server.fake_worker import say

MESSAGES = [{"role": "user", "content": "hi"}]


def test_chat_answers_with_text_usage_and_timings(sdk):
    answer = sdk.chat.completions.create(model="any name", messages=MESSAGES)
    assert answer.choices[0].message.content == "Höi!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny"
    assert (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.total_tokens,
    ) == (5, 4, 9)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    timings = answer.model_extra["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (3, 2)
    assert timings["predicted_per_second"] == 12  # 3 steps after the first token, in 0.25 s
    assert (timings["prompt_n"], timings["cache_n"]) == (3, 2)


def test_acceptance_is_reported_under_the_names_other_tools_read(sdk):
    short = sdk.chat.completions.create(model="m", messages=MESSAGES)
    assert short.model_extra["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.6667,
        "acceptance_histogram": [0, 0, 1],
        "num_spec_steps": 1,
        "num_draft_tokens": 3,
        "num_accepted_draft_tokens": 2,
    }
    answer = sdk.chat.completions.create(
        model="m", messages=MESSAGES, extra_body={"return_metrics": True}
    )
    metrics = answer.model_extra["metrics"]["speculative_decoding"]
    assert metrics["mean_acceptance_length"] == 2.0
    assert metrics["draft_acceptance_rate"] == 0.6667
    assert metrics["acceptance_histogram"] == [0, 0, 1]
    by_ngram = metrics["by_speculator"]["ngram-simple"]
    assert (by_ngram["num_draft_tokens"], by_ngram["num_accepted_draft_tokens"]) == (3, 2)
    assert metrics["reasons_not_drafted"] == {"no match": 1}


def test_stream_has_role_then_text_then_finish_with_timings(sdk):
    chunks = list(sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content is None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Höi!"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert chunks[-1].choices[0].delta.model_dump(exclude_none=True) == {}
    assert chunks[-1].model_extra["timings"]["draft_n"] == 3
    assert not any("timings" in chunk.model_extra for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_comes_in_an_extra_chunk_that_carries_the_timings(sdk):
    stream = sdk.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *_, finish, last = stream
    assert finish.choices[0].finish_reason == "stop"
    assert "timings" not in finish.model_extra
    assert last.choices == []
    assert last.usage.completion_tokens == 4
    assert last.model_extra["timings"]["cache_n"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_cover_every_token(sdk, stream):
    answer = sdk.chat.completions.create(
        model="m", messages=MESSAGES, logprobs=True, top_logprobs=2, stream=stream
    )
    choices = (
        [chunk.choices[0] for chunk in answer if chunk.choices] if stream else [answer.choices[0]]
    )
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert b"".join(bytes(entry.bytes) for entry in entries) == "Höi!".encode()
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in entries)
    # -inf is not JSON
    assert entries[0].top_logprobs[1].logprob == pytest.approx(-3.4e38, rel=0.01)


def test_choices_differ_in_seed_only(sdk, worker):
    answer = sdk.chat.completions.create(model="m", messages=MESSAGES, n=3, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [request.sampling.seed for request in worker.requests] == [7, 8, 9]
    assert len({request.request_id for request in worker.requests}) == 3
    assert answer.model_extra["seed"] == 7
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 12


def test_streamed_choices_each_finish_and_timings_come_once(sdk):
    chunks = list(sdk.chat.completions.create(model="m", messages=MESSAGES, n=2, stream=True))
    texts = [
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices[0].index == i)
        for i in range(2)
    ]
    assert texts == ["Höi!", "Höi!"]
    assert sum(chunk.choices[0].finish_reason == "stop" for chunk in chunks) == 2
    assert ["timings" in chunk.model_extra for chunk in chunks] == [False] * (len(chunks) - 1) + [
        True
    ]


def test_stop_reaches_the_scheduler_as_bytes(sdk, worker):
    sdk.chat.completions.create(model="m", messages=MESSAGES, stop="é")
    sdk.chat.completions.create(model="m", messages=MESSAGES, stop=["a", "", "b"])
    # the last is ChatML's own, from the fallback template
    stops = [request.stop[:-1] for request in worker.requests]
    assert stops == [("é".encode(),), (b"a", b"b")]
    sdk.completions.create(model="m", prompt="a", stop="x")
    assert worker.requests[-1].stop == (b"x",)


def test_length_is_a_finish_reason(sdk, worker):
    worker.script = lambda request: say(request, b"ab", reason="length")
    answer = sdk.chat.completions.create(model="m", messages=MESSAGES, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"


def test_completion_answers_prompts_in_order(sdk, worker):
    answer = sdk.completions.create(model="m", prompt=["ab", "c"], echo=True, max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["abHöi!", "cHöi!"]
    assert [list(request.prompt) for request in worker.requests] == [[97, 98], [99]]
    assert answer.usage.prompt_tokens == 10
    assert worker.requests[0].max_tokens == 5


def test_completion_takes_token_ids_and_streams(sdk, worker):
    chunks = list(sdk.completions.create(model="m", prompt=[97, 98], echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abHöi!"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert list(worker.requests[0].prompt) == [97, 98]


@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
def test_the_last_chunk_of_a_completion_has_the_usage(sdk, options):
    wish = {"model": "m", "prompt": ["ab", "c"], "max_tokens": 5, "n": 2}
    *others, last = sdk.completions.create(**wish, stream=True, stream_options=options)
    assert last.usage == sdk.completions.create(**wish).usage
    assert not any(chunk.usage for chunk in others)


def test_completion_logprobs_have_both_shapes(sdk):
    logprobs = sdk.completions.create(model="m", prompt="a", logprobs=1).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 5
    assert logprobs.model_extra["content"][0]["id"] == ord("H")


@pytest.mark.parametrize("stream", [False, True])
def test_an_offset_is_where_a_tokens_character_begins_in_the_text(sdk, stream):
    answer = sdk.completions.create(model="m", prompt="a", logprobs=0, stream=stream)
    choices = [chunk.choices[0] for chunk in (answer if stream else [answer])]
    offsets = [at for one in choices if one.logprobs for at in one.logprobs.text_offset]
    assert offsets == [0, 1, 1, 2, 3]  # "Höi!", a token for each byte


def test_models_can_be_listed_and_retrieved(sdk):
    (model,) = sdk.models.list()
    assert model.id == "tiny"
    assert model.model_extra["meta"]["n_ctx_train"] == 512
    assert sdk.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no model"):
        sdk.models.retrieve("some/other")


def test_errors_raise_the_clients_exceptions(sdk):
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="m", messages=MESSAGES, temperature=1000)
    body = caught.value.body
    assert isinstance(body, dict)
    assert (body["type"], body["code"]) == ("invalid_request_error", 400)
    assert "temperature is 1000" in body["message"]


def test_the_sdk_shows_what_we_add_to_chunks(sdk):
    extra = {"return_tokens": True, "timings_per_token": True, "return_progress": True}
    chunks = list(
        sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True, extra_body=extra)
    )
    choices = [chunk.choices[0].model_extra for chunk in chunks]
    assert [token for extra in choices for token in extra.get("tokens", [])] == list(
        "Höi!".encode()
    )
    assert any("prompt_progress" in chunk.model_extra for chunk in chunks)
    assert sum("timings" in chunk.model_extra for chunk in chunks) == 4  # progress has them too

"""llama-server's own routes: completion, tokens, templates."""

from __future__ import annotations

import dataclasses

import pytest
from tests.server.fake_worker import INFO, FakeWorker, say
from tests.server.serving import error_of, events_of, served_model, serving

from headstart.config import ChatConfig, Config, SchedulerConfig
from headstart.testing import ByteVocab
from headstart.text.chat_template import ChatTemplate
from headstart.types import DraftMode
from headstart.types.sampling_params import LogitBias


def test_completion_has_llama_servers_fields(client):
    answer = client.post(
        "/completion", json={"prompt": "ab", "n_predict": 9, "seed": 5, "return_tokens": True}
    ).json()
    assert answer["content"] == "Höi!"
    assert answer["tokens"] == list("Höi!".encode())
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "eos", False)
    assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (
        4,
        5,
        8,  # of four emitted tokens the last is not decoded
    )
    assert (answer["id_slot"], answer["prompt"], answer["model"]) == (2, "ab", "tiny")
    assert answer["generation_settings"]["seed"] == 5
    assert answer["generation_settings"]["n_predict"] == 9
    assert answer["timings"]["draft_n"] == 3


def test_completion_stream_has_no_done_and_ends_with_stop(client):
    *parts, last = events_of(client.post("/completion", json={"prompt": "ab", "stream": True}))
    assert "".join(part["content"] for part in parts) == "Höi!"
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert [token for part in parts for token in part["tokens"]] == list("Höi!".encode())
    assert last["stop"] is True
    assert last["timings"]["predicted_n"] == 4


def test_an_empty_prompt_without_a_start_token_has_an_empty_answer(client, worker):
    answer = client.post("/completion", json={"prompt": ""}).json()
    assert (answer["content"], answer["tokens_predicted"], answer["stop"]) == ("", 0, True)
    body = {"prompt": ["", ""], "stream": True, "echo": True, "logprobs": 1}
    assert client.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")


def test_numbers_of_slots_go_round(client, worker):
    for slot, taken in ((5, 1), (-3, None)):
        client.post("/completion", json={"prompt": "a", "id_slot": slot}).raise_for_status()
        assert worker.requests[-1].slot_id == taken


def test_many_alternatives_are_for_few_tokens():
    worker = FakeWorker()
    worker.info_when_ready = dataclasses.replace(INFO, context_size=1 << 15)
    with serving(worker) as client:
        for prompt, max_tokens, echo, status in (
            ("a", 1 << 13, False, 200),
            ("a", 1 << 15, False, 400),
            (["a"] * 32, 1 << 8, False, 200),  # of all answers together
            (["a"] * 32, 1 << 9, False, 400),
            ("a" * (1 << 13), 1, True, 200),  # and of prompts whose tokens are shown
            (["a" * (1 << 13)] * 2, 1, True, 400),
        ):
            body = {"prompt": prompt, "logprobs": 256, "max_tokens": max_tokens, "echo": echo}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == status, answer.text


def test_a_stop_string_is_reported(client, worker):
    worker.script = lambda request: say(request, b"ab", reason="word", stopping_word="!")
    answer = client.post("/completion", json={"prompt": "ab"}).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "!")


def test_a_random_seed_is_reported_and_repeatable(client, worker):
    seeds = [
        client.post("/completion", json={"prompt": "a", "seed": seed}).json()
        for seed in (-1, None, 2**32 - 1)
    ]
    reported = [answer["generation_settings"]["seed"] for answer in seeds]
    assert reported == [request.sampling.seed for request in worker.requests]
    assert len(set(reported)) == 3


def test_zero_tokens_only_fill_the_cache(client, worker):
    answer = client.post("/completion", json={"prompt": "a", "n_predict": 0}).json()
    assert (answer["content"], answer["stop_type"]) == ("", "limit")
    assert worker.requests[0].max_tokens == 0


def test_token_limits_have_three_names_and_minus_one_is_none(client, worker):
    for body in (
        {"max_tokens": 3},
        {"max_completion_tokens": 3},
        {"n_predict": 3, "max_tokens": 9},
        {"n_predict": -1},
    ):
        client.post("/completion", json={"prompt": "a"} | body)
    assert [request.max_tokens for request in worker.requests] == [3, 3, 3, None]


def test_prompts_may_mix_texts_and_tokens(client, worker):
    answers = client.post(
        "/completion", json={"prompt": ["a", [98, "c<eos>"], {"prompt_string": "d"}]}
    ).json()
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert [list(request.prompt) for request in worker.requests] == [[97], [98, 99, 256], [100]]
    assert answers[1]["prompt"] == "bc<eos>"


def test_sampling_fields_reach_the_request(client, worker):
    body = {
        "temperature": 0, "top_k": 5, "min_p": 0.1, "xtc_probability": 0.5, "dry_multiplier": 1,
        "ignore_eos": True, "samplers": ["top-k", "temp"], "dry_sequence_breakers": ["x"],
        "n_probs": 3, "post_sampling_probs": True, "t_max_predict_ms": 1500, "id_slot": 2,
        "cache_prompt": False, "priority": -3,
    }  # fmt: skip
    client.post("/completion", json={"prompt": "a"} | body)
    (request,) = worker.requests
    assert (
        request.sampling.temperature,
        request.sampling.top_k,
        request.sampling.xtc_probability,
    ) == (0, 5, 0.5)
    assert request.sampling.samplers == ("top_k", "temperature")
    assert request.sampling.dry_sequence_breakers == ("x",)
    assert request.sampling.ignore_eos
    assert (request.num_logprobs, request.post_sampling_probs, request.max_seconds) == (
        3,
        True,
        1.5,
    )
    assert (request.slot_id, request.cache_prompt, request.priority) == (2, False, -3)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ({"97": 1.5}, {97: 1.5}),
        ([[97, -1], ["bc", 2]], {97: -1.0, 98: 2.0, 99: 2.0}),
        ({"ab": False}, {97: float("-inf"), 98: float("-inf")}),
        ([["aa", 1]], {97: 2.0}),
    ],
)
def test_logit_bias_has_all_its_forms(client, worker, bias, expected):
    answer = client.post("/completion", json={"prompt": "a", "logit_bias": bias}).json()
    assert worker.requests[0].sampling.logit_bias == LogitBias(expected)
    shown = {entry["token"]: entry["bias"] for entry in answer["generation_settings"]["logit_bias"]}
    assert shown == {
        token: False if value == float("-inf") else value for token, value in expected.items()
    }


@pytest.mark.parametrize(
    "body",
    [
        {
            "speculative.n_max": 3,
            "speculative.n_min": 1,
            "speculative.p_min": 0.5,
            "speculative.type": "suffix,ngram-mod",
        },
        {"speculative": {"n_max": 3, "n_min": 1, "p_min": 0.5, "types": ["suffix", "ngram-mod"]}},
        {
            "speculative": {"n_max": 9, "n_min": 1, "p_min": 0.5, "types": "suffix, ngram-mod"},
            "speculative.n_max": 3,
        },
    ],
)
def test_speculation_is_set_by_dotted_keys_or_an_object(client, worker, body):
    client.post("/completion", json={"prompt": "a"} | body)
    speculative = worker.requests[0].speculative
    assert (speculative.n_max, speculative.n_min, speculative.p_min) == (3, 1, 0.5)
    assert speculative.types == ("suffix", "ngram-mod")
    assert speculative.mode is None


@pytest.mark.parametrize("types", ["draft-simple", ["draft-simple", "draft-model"]])
def test_llama_servers_name_of_a_draft_model_is_taken(client, worker, types):
    client.post("/completion", json={"prompt": "a", "speculative": {"types": types}})
    assert worker.requests[0].speculative.types == ("draft-model",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": 3}, 3),
        ({"logprobs": 0}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 1),
        ({"logprobs": 3, "n_probs": 2}, 2),
        ({"logprobs": 3, "n_probs": 0}, None),
        ({"n_probs": -1}, None),
        ({"logprobs": -1}, None),
    ],
)
def test_logprobs_is_another_name_of_n_probs(client, worker, fields, expected):
    assert client.post("/completion", json={"prompt": "a"} | fields).status_code == 200
    assert worker.requests[0].num_logprobs == expected


def test_values_that_switch_a_feature_off_which_is_not_built_are_taken(client, worker):
    off = {
        "lora": [],
        "adaptive_target": -1.0,
        "reasoning_budget_tokens": -1,
        "thinking_budget_tokens": -1,
    }
    for fields in (off, {"lora": [{"id": 0, "scale": 0.0}], "adaptive_target": None}):
        assert client.post("/completion", json={"prompt": "a"} | fields).status_code == 200
    assert len(worker.requests) == 2


def test_speculation_can_be_switched_off(client, worker):
    for body in ({"speculative": {"mode": "off"}}, {"speculative.type": "none"}):
        client.post("/completion", json={"prompt": "a"} | body)
    assert [request.speculative.mode for request in worker.requests] == [DraftMode.OFF] * 2
    assert worker.requests[1].speculative.types is None


def test_probabilities_after_sampling_replace_their_logs(client):
    body = {"prompt": "a", "n_probs": 1, "post_sampling_probs": True}
    first = client.post("/completion", json=body).json()["completion_probabilities"][0]
    assert first["prob"] == pytest.approx(0.6065, abs=1e-3)
    assert first["top_probs"][0]["token"] == "H"
    assert "logprob" not in first


def test_progress_and_running_timings_come_on_request(client):
    body = {"prompt": "abcde", "stream": True, "return_progress": True, "timings_per_token": True}
    first, *parts = events_of(client.post("/completion", json=body))
    assert first["prompt_progress"] == {"total": 5, "cache": 2, "processed": 5, "time_ms": 500}
    read = first["timings"]
    assert (read["cache_n"], read["prompt_n"], read["prompt_ms"]) == (2, 3, 500.0)
    assert (read["predicted_n"], read["predicted_ms"]) == (0, 0.0)
    assert all(part["timings"]["prompt_n"] == 3 for part in parts)
    plain = events_of(client.post("/completion", json={"prompt": "a", "stream": True}))
    assert not any("prompt_progress" in part for part in plain)
    assert ["timings" in part for part in plain] == [False] * (len(plain) - 1) + [True]


def test_verbose_shows_the_native_answer_on_openais_routes(client):
    body = {"prompt": "ab", "verbose": True, "logit_bias": {"65": 2}}
    answer = client.post("/v1/completions", json=body).json()
    native = answer["__verbose"]
    assert (native["content"], native["prompt"]) == ("Höi!", "ab")
    assert native["generation_settings"]["logit_bias"] == [{"token": 65, "bias": 2.0}]


def test_response_fields_select_and_flatten(client):
    body = {
        "prompt": "a",
        "response_fields": ["content", "timings/cache_n", "generation_settings/top_k", "no/such"],
    }
    answer = client.post("/completion", json=body).json()
    assert answer == {"content": "Höi!", "timings/cache_n": 2, "generation_settings/top_k": 40}
    *_, last = events_of(client.post("/completion", json=body | {"stream": True}))
    assert last == answer | {"content": ""}


def test_an_unfinished_character_is_replaced_only_at_the_very_end(client, worker):
    worker.script = lambda request: say(request, b"a\xe2", b"\x82", b"\xac\xf0\x9f")
    parts = events_of(client.post("/completion", json={"prompt": "a", "stream": True}))
    assert [part["content"] for part in parts] == ["a", "€", "\ufffd", ""]


def test_tokenize_and_detokenize_are_inverse(client):
    tokens = client.post("/tokenize", json={"content": "hö<eos>"}).json()["tokens"]
    assert tokens == [104, 0xC3, 0xB6, 256]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": "hö<eos>"}


def test_tokenize_shows_pieces_and_spells_markers_on_request(client):
    pieces = client.post("/tokenize", json={"content": "hö", "with_pieces": True}).json()["tokens"]
    assert pieces[:2] == [{"id": 104, "piece": "h"}, {"id": 0xC3, "piece": [0xC3]}]
    plain = client.post("/tokenize", json={"content": "<eos>", "parse_special": False}).json()[
        "tokens"
    ]
    assert plain == list(b"<eos>")
    assert client.post("/detokenize", json={"tokens": [999]}).status_code == 400
    # writers of JSON that leave out what is empty
    assert client.post("/tokenize", json={}).json() == {"tokens": []}
    assert client.post("/detokenize", json={}).json() == {"content": ""}


def test_a_body_may_begin_with_a_byte_order_mark(client):
    body = b"\xef\xbb\xbf" + b'{"content": "h"}'
    assert client.post("/tokenize", content=body).status_code == 200


def test_what_is_null_in_a_message_is_empty(client):
    roles = {"user": None, "tool": None, "system": None}
    messages = [{"role": role, "content": content} for role, content in roles.items()]
    empty = [message | {"content": ""} for message in messages]
    prompts = [
        client.post("/apply-template", json={"messages": some}).json()["prompt"]
        for some in (messages, empty)
    ]
    assert prompts[0] == prompts[1]


def test_apply_template_renders_without_generating(client, worker):
    body = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ]
    }
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert prompt == "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
    assert worker.requests == []


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
def test_only_what_makes_a_prompt_is_checked_where_only_the_prompt_is_wanted(client, path):
    messages = [{"role": "user", "content": "a"}]
    body = {"messages": messages, "temperature": "0", "logprobs": 3, "stop": 5, "n": 99}
    plain = client.post(path, json={"messages": messages}).json()
    assert client.post(path, json=body).json() == plain
    error_of(client.post(path, json=body | {"tools": 5}), 400)


def test_a_last_assistant_message_is_continued(client, worker):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nIt is")
    answer = client.post("/v1/chat/completions", json={"messages": messages}).json()
    assert answer["choices"][0]["message"]["content"] == "Höi!"
    echoed = client.post("/v1/chat/completions", json={"messages": messages, "echo": True}).json()
    assert echoed["choices"][0]["message"]["content"] == "It isHöi!"
    finished = client.post(
        "/apply-template", json={"messages": messages, "continue_final_message": False}
    ).json()
    assert finished["prompt"].endswith("It is<|im_end|>\n<|im_start|>assistant\n")


def test_template_arguments_come_from_the_request():
    model = served_model("{{ enable_thinking }} {{ tools[0].function.name }} {{ a }}")
    with serving(model=model) as client:
        body = {
            "messages": [{"role": "user", "content": "x"}], "reasoning_effort": "none",
            "chat_template_kwargs": {"a": 1, "messages": "mine"}, "tool_choice": "none",
            "tools": [{"function": {"name": "f"}}],
        }  # fmt: skip
        assert client.post("/apply-template", json=body).json()["prompt"] == "False f 1"


class BosVocab(ByteVocab):
    add_bos = True

    def tokenize(self, text, *, add_special, parse_special):
        ids = super().tokenize(text, add_special=False, parse_special=parse_special)
        return [257, *ids] if add_special else ids


def test_the_start_token_is_there_once():
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", bos_token="<bos>")
    worker = FakeWorker()
    model = dataclasses.replace(served_model(vocab=BosVocab()), template=template)
    with serving(worker, model=model) as client:
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
        client.post("/completion", json={"prompt": "a"})
        client.post("/completion", json={"prompt": [97]})
    assert [list(request.prompt) for request in worker.requests] == [[257, 97], [257, 97], [97]]


def test_defaults_of_chats_are_the_command_lines():
    defaults = ChatConfig(chat_template_kwargs='{"a": 1, "b": 2}', prefill_assistant=False)
    template = "{{ a }}{{ b }}{{ messages | length }}{{ messages[0].content }}"
    model = served_model(template, config=Config(chat=defaults))
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    with serving(model=model) as client:
        body = {"messages": messages, "chat_template_kwargs": {"b": 3}}
        assert client.post("/apply-template", json=body).json()["prompt"] == "132x"


def test_what_the_server_was_started_with_decides_whether_prompts_are_cached():
    worker = FakeWorker()
    model = served_model(config=Config(scheduler=SchedulerConfig(cache_prompt=False)))
    with serving(worker, model=model) as client:
        client.post("/completion", json={"prompt": "a"})
        client.post("/completion", json={"prompt": "a", "cache_prompt": True})
    assert [request.cache_prompt for request in worker.requests] == [False, True]


def test_ignore_eos_lists_what_it_bans(client):
    body = {"prompt": "a", "ignore_eos": True, "logit_bias": {"98": 1.0}}
    shown = client.post("/completion", json=body).json()["generation_settings"]["logit_bias"]
    assert shown == [{"token": 98, "bias": 1.0}, {"token": 256, "bias": None}]

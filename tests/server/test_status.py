"""What the server says about itself."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fake_worker import DRAFTED, INFO, REPORT, FakeWorker
from tests.server.server_process import until
from tests.server.serving import served_model, serving, serving_models

from headstart.config import (
    Config,
    EngineConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
    ToolsConfig,
)
from headstart.server.answer_numbers import sum_stats
from headstart.server.metrics import METRICS, render
from headstart.types.report import Counters, WorkerReport
from headstart.types.request import RequestStats


def samples(text):
    families = text_string_to_metric_families(text)
    return {
        (s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples
    }


def test_metrics_have_llama_servers_names_and_ours_by_speculator(client):
    response = client.get("/metrics")
    raw = dict(response.headers.raw)  # some clients compare names with case
    assert int(raw[b"Process-Start-Time-Unix"]) > 0
    values = samples(response.text)
    assert values["llamacpp:spec_decode_num_draft_tokens_total",] == 10
    assert values["llamacpp:spec_decode_num_accepted_tokens_per_pos_total", ("position", "1")] == 3
    assert values["llamacpp:prompt_tokens_seconds",] == 15
    name = ("speculator", "ngram-simple")
    assert values["headstart_draft_tokens_accepted_total", name] == 7
    assert values["headstart_speculator_seconds_total", ("phase", "propose"), name] == 0.5
    assert values["headstart_drafts_offered_total", name] == 4
    assert values["headstart_speculator_reasons_total", ("reason", "outbid"), name] == 6
    assert values["headstart_steps_without_draft_total", ("reason", 'no "match"')] == 2


def test_speeds_are_those_since_the_metrics_were_last_read(client):
    name = ("llamacpp:prompt_tokens_seconds",)
    client.get("/metrics")
    assert samples(client.get("/metrics").text)[name] == 0
    counted = {"prompt_tokens": 45, "prompt_seconds": 3.0}
    later = replace(REPORT, counters=Counters(**counted), last_read=REPORT.counters)
    assert samples(render(later))[name] == (45 - 30) / (3 - 2)
    restarted = replace(later, counters=Counters(prompt_tokens=6, prompt_seconds=1.0))
    assert samples(render(restarted))[name] == 6


def test_every_metric_has_one_line_in_the_table():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    shown = {line.split()[2] for line in render(REPORT).splitlines() if line.startswith("# TYPE")}
    assert shown == {metric.name for metric in METRICS}
    assert render(WorkerReport())


def test_every_metric_has_the_labels_of_the_table():
    for metric in METRICS:
        assert {tuple(labels) for labels, _ in metric.read(REPORT)} == {metric.labels}


def test_slots_show_what_runs(client):
    first, second = client.get("/slots").json()
    assert (first["id"], first["is_processing"], first["next_token"][0]["n_remain"]) == (0, True, 7)
    assert first["by_speculator"] == {
        "ngram-simple": {
            "num_calls": 4,
            "num_drafts_offered": 2,
            "num_drafts": 1,
            "num_drafts_accepted": 1,
            "num_draft_tokens": 3,
            "num_accepted_draft_tokens": 2,
            "num_rows_wasted": 1,
            "draft_tokens_by_position": [1, 1, 1],
            "accepted_draft_tokens_by_position": [1, 1, 0],
            "reasons_not_drafted": {"no match": 2, "below break-even": 1},
        }
    }
    assert (second["id"], second["is_processing"]) == (1, False)
    assert client.get("/slots?fail_on_no_slot=1").status_code == 200


def test_props_name_model_template_and_defaults(client):
    props = client.get("/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["default_generation_settings"]["params"]["seed"] == 4294967295  # as there: random
    assert props["chat_template_is_fallback"] is True
    assert "<|im_start|>" in props["chat_template"]
    assert props["eos_token"] == "<eos>"
    assert props["speculation"]["mode"] == "auto"
    speculator = props["speculation"]["speculators"][0]
    assert speculator["name"] == "ngram-simple"
    assert [speculator[f"num_{count}"] for count in ("calls", "draft_tokens", "rows_wasted")] == [
        5,
        10,
        3,
    ]
    assert speculator["accepted_draft_tokens_by_position"] == [4, 3, 0, 0]
    assert (speculator["num_drafts_offered"], speculator["reasons_not_drafted"]) == (
        4,
        {"outbid": 6},
    )
    assert speculator["seconds"] == {"propose": 0.5}
    with serving(model=served_model("{{ messages[0].content }}")) as other:
        assert other.get("/props").json()["chat_template_is_fallback"] is False


@pytest.mark.parametrize(
    ("server", "wish", "shown"),
    [
        ({}, {}, "ngram-simple"),
        ({}, {"types": ["suffix", "ngram-mod"]}, "suffix,ngram-mod"),
        ({}, {"types": "none"}, "none"),
        ({}, {"mode": "off"}, "none"),
        ({}, {"n_max": 0}, "none"),
        ({"types": []}, {}, "none"),
        ({"n_max": 0}, {}, "none"),
        ({"unusable": "it cannot go back"}, {}, "none"),
    ],
)
def test_settings_name_the_speculators_that_may_draft_for_a_request(server, wish, shown):
    worker = FakeWorker()
    worker.info_when_ready = replace(INFO, speculation={**INFO.speculation, **server})
    with serving(worker) as client:
        answer = client.post("/completion", json={"prompt": "a", "speculative": wish}).json()
        defaults = client.get("/props").json()["default_generation_settings"]["params"]
    assert answer["generation_settings"]["speculative.types"] == shown
    assert defaults["speculative.types"] == ("none" if server else "ngram-simple")


def test_models_do_not_ask_the_worker():
    worker = FakeWorker()
    with serving(worker) as client:
        worker.report = None  # a call would fail
        for path in ("/v1/models", "/models", "/v1/models/tiny", "/v1/models//models/tiny.gguf"):
            assert client.get(path).status_code == 200
        data = client.get("/v1/models").json()
        assert data["models"][0]["name"] == data["data"][0]["id"] == "tiny"
        listed = data["models"][0]
        assert client.get("/api/tags").json()["models"][0].items() <= listed.items()
        assert (listed["tags"], listed["description"], listed["parameters"]) == ([], "", "")


@pytest.mark.parametrize("name", ["", "ui_mcp_proxy"])
def test_pages_are_told_whether_they_have_a_proxy(name: str) -> None:
    tools = ToolsConfig(**({name: True} if name else {}))
    with serving(model=served_model(config=Config(tools=tools))) as client:
        assert client.get("/props").json()["cors_proxy_enabled"] is bool(name)


def test_switched_off_routes_are_501():
    with serving(config=ServerConfig(slots=False, metrics=False)) as client:
        for path in ("/slots", "/metrics"):
            response = client.get(path)
            assert (response.status_code, response.json()["error"]["type"]) == (
                501,
                "not_supported_error",
            )


def test_routes_work_without_v1(client):
    body = {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}
    assert client.post("/chat/completions", json=body).json()["object"] == "chat.completion"
    assert client.post("/completions", json=body).json()["stop"] is True
    assert client.post("/v1/completions", json=body).json()["object"] == "text_completion"


def test_openapi_describes_every_body_answer_and_error(client):
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "/chat/completions" not in document["paths"]
    assert "`/chat/completions`" in chat["description"]
    body = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert body == "#/components/schemas/ChatBody"
    assert "messages" in schemas["ChatBody"]["required"]
    assert chat["responses"].keys() == {"200", "default"}
    refs = set(re.findall(r'"\$ref":\s*"#/components/schemas/(\w+)"', json.dumps(document)))
    assert refs <= schemas.keys()


def test_choices_of_a_call_are_summed_up_by_speculator():
    one = RequestStats(by_speculator={"a": DRAFTED, "b": DRAFTED})
    by_speculator = sum_stats([one, RequestStats(by_speculator={"a": DRAFTED})]).by_speculator
    assert (by_speculator["a"].num_calls, by_speculator["b"].num_calls) == (8, 4)
    assert by_speculator["a"].accepted_by_position == (2, 2, 0)
    assert by_speculator["a"].reasons == {"no match": 4, "below break-even": 2}


def test_choices_of_a_call_have_the_sum_of_their_numbers():
    one = RequestStats(slot_id=3, num_prompt=5, num_near_ties=1, prompt_seconds=0.5)
    both = sum_stats([one, replace(one, slot_id=2, num_near_ties=2)])
    assert (both.slot_id, both.num_prompt, both.num_near_ties) == (-1, 10, 3)
    assert both.prompt_seconds == 1.0


def test_the_model_has_aliases_tags_and_a_file_type():
    served = served_model(aliases=("small",), tags=("a", "b"))
    with serving(model=served) as client:
        (entry,) = client.get("/v1/models").json()["data"]
        assert client.get("/v1/models/small").json()["id"] == "tiny"
    assert (entry["aliases"], entry["tags"]) == (["tiny", "small"], ["a", "b"])
    assert "ftype" in entry["meta"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/props", "/slots", "/metrics"])
def test_head_answers_as_get_without_a_body(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == client.get(path).headers["content-type"]


def test_slots_props_metrics_and_answers_agree_on_what_was_drafted():
    chain = "suffix,ngram-cache,ngram-simple,draft-model"
    config = Config(
        engine=EngineConfig(context=4096, threads=1),
        scheduler=SchedulerConfig(parallel=4),
        speculation=SpeculationConfig(spec_type=chain, spec_state="none"),
    )
    wishes = [
        {},
        {"mode": "off"},
        {"mode": "fixed", "n_max": 3},
        {"types": ["draft-model"], "mode": "fixed"},
    ]
    with serving_models(config) as client, ThreadPoolExecutor(4) as pool:

        def ask(number: int) -> dict[str, Any]:
            body = {
                "prompt": f"def f{number}(x):\n    return x\n" * 3,
                "n_predict": 30,
                "temperature": number % 2,
                "return_metrics": True,
                "speculative": wishes[number % 4],
            }
            answer = client.post("/completion", json=body).json()
            return answer["metrics"]["speculative_decoding"]

        answers = list(pool.map(ask, range(16)))
        until(
            lambda: "\nheadstart_requests_total 16\n" in client.get("/metrics").text,
            "all requests are counted",
        )
        metrics = client.get("/metrics").text
        speculators = client.get("/props").json()["speculation"]["speculators"]

    def metric(name: str) -> int:
        lines = [line for line in metrics.splitlines() if line.startswith(name)]
        return sum(int(float(line.split()[-1])) for line in lines)

    def total(name: str) -> int:
        return sum(one[name] for one in answers)

    drafted, accepted = total("num_draft_tokens"), total("num_accepted_draft_tokens")
    assert accepted > 0
    for name, count in {
        "llamacpp:spec_decode_num_draft_tokens_total": drafted,
        "headstart_draft_tokens_total": drafted,
        "headstart_draft_tokens_by_position_total": drafted,
        "llamacpp:spec_decode_num_accepted_tokens_total": accepted,
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total": accepted,
        "headstart_draft_tokens_accepted_total": accepted,
        "llamacpp:spec_decode_num_drafts_total": total("num_spec_steps"),
        "headstart_rows_wasted_total": drafted - accepted,
    }.items():
        assert metric(name) == count, name
    assert sum(one["num_rows_wasted"] for one in speculators) == drafted - accepted
    reasons = sum(sum(one["reasons_not_drafted"].values()) for one in answers)
    assert reasons == metric("headstart_steps_without_draft_total")
    # the first token comes with the prompt
    assert total("num_steps") == 16 + total("num_spec_steps") + reasons
    for one in speculators:
        by_name = [answer["by_speculator"].get(one["name"], {}) for answer in answers]
        for count in ("num_calls", "num_drafts", "num_draft_tokens", "num_accepted_draft_tokens"):
            assert one[count] == sum(counts.get(count, 0) for counts in by_name)
        reasons = sum(sum(counts["reasons_not_drafted"].values()) for counts in by_name if counts)
        assert reasons == metric(f'headstart_speculator_reasons_total{{speculator="{one["name"]}"')

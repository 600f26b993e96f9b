"""All bodies of openapi.json with large values and long lists: no 5xx, no wait, no memory kept, and
the neighbour's stream is whole.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from tests.server.fake_worker import FakeWorker, say
from tests.server.server_process import Server
from tests.server.serving import serving

LARGE = {
    "int32": 2**31 - 1,
    "int53": 2**53,
    "negative": -(2**31),
    "float": 1e308,
    "tiny": 1e-308,
    "text": "a" * 1_000_000,
    "commas": "k," * 500_000,
    "texts": ["x"] * 20_000,
    "numbers": [1] * 500_000,
    "pairs": [[1, 1e308]] * 50_000,
    "objects": [{"role": "user", "content": "a"}] * 10_000,
    "deep": json.loads("[" * 500 + "]" * 500),
    "keys": {f"k{i}": i for i in range(20_000)},
    "deep keys": json.loads('{"a":' * 500 + "1" + "}" * 500),
}
NEEDED = {
    "messages": [{"role": "user", "content": "a"}],
    "prompt": "a",
    "content": "a",
    "tokens": [97],
    "input_prefix": "a",
    "input_suffix": "b",
    "max_tokens": 2,
}


LONG = 10_000  # characters; of longer values one route is asked for each kind of field
SLOW = 2.0  # processor seconds of a request, however busy the machine is


def fields_of(client) -> dict[str, dict[str, str]]:
    """The fields of each POST body and their schemas, by path."""
    page = client.get("/openapi.json").json()

    def properties(schema: dict) -> dict[str, str]:
        if "$ref" in schema:
            schema = page["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        listed = schema.get("properties", {})  # a list has none
        return {name: json.dumps(one, sort_keys=True) for name, one in sorted(listed.items())}

    return {
        path: properties(methods["post"]["requestBody"]["content"]["application/json"]["schema"])
        for path, methods in page["paths"].items()
        if "post" in methods and "requestBody" in methods["post"]
    }


def resident_mb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmRSS")


@pytest.fixture(scope="module")
def client():
    with serving(FakeWorker()) as client:
        yield client


@pytest.mark.parametrize("kind", LARGE)
def test_no_large_value_of_any_field_hurts(client, kind):
    routes, large = fields_of(client), json.dumps(LARGE[kind])  # writing it takes long
    assert {"/completion", "/v1/chat/completions", "/infill", "/tokenize"} <= set(routes)
    before, seen = resident_mb(), set[tuple[str, str]]()
    for path, fields in routes.items():
        for field, schema in fields.items():
            if len(large) > LONG and (field, schema) in seen:
                continue
            seen.add((field, schema))
            known = {name: json.dumps(value) for name, value in NEEDED.items() if name in fields}
            members = (f'"{name}": {text}' for name, text in (known | {field: large}).items())
            data = f"{{{', '.join(members)}}}".encode()
            started = time.process_time()
            response = client.post(path, content=data)
            assert time.process_time() - started < SLOW, (path, field)
            assert response.status_code < 500 or response.status_code == 501, (path, field)
            if response.status_code >= 400:
                assert len(response.content) < 20_000, (path, field)
    assert resident_mb() - before < 250


def test_a_neighbour_s_stream_is_whole_and_the_same():
    worker = FakeWorker(lambda request: say(request, *[bytes([97 + i % 26]) for i in range(40)]))
    with serving(worker) as client:
        texts: list[str] = []
        stop = threading.Event()

        def stream() -> None:
            while not stop.is_set():
                body = {"prompt": "a", "stream": True}
                lines = client.post("/completion", json=body).text.split("\n\n")
                chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
                assert chunks[-1]["stop"]
                texts.append("".join(chunk["content"] for chunk in chunks))

        thread = threading.Thread(target=stream)
        thread.start()
        for value in LARGE.values():
            for field in ("prompt", "logit_bias", "samplers", "stop", "n_probs", "lora"):
                client.post("/completion", content=json.dumps({"prompt": "a"} | {field: value}))
        stop.set()
        thread.join(60)
    assert len(texts) > 1
    assert set(texts) == {"".join(chr(97 + i % 26) for i in range(40))}


def test_the_real_engine_lives_through_large_numbers(tmp_path):
    flags = ["--context", "512", "--threads", "1"]
    with Server(flags, tmp_path) as server, server.client() as client:
        known = {"prompt": "def f(x):\n", "max_tokens": 12, "temperature": 0}
        text = client.post("/completion", json=known).json()["content"]
        pid = server.engine_pid()
        schema = fields_of(client)["/completion"]
        for number in (2**31 - 1, -1, 0, 1e-308, 3e38, 1e308):
            for field in schema:
                body = {"prompt": "a", "max_tokens": 2, "repeat_penalty": 1.1} | {field: number}
                body |= {"dry_multiplier": 1.0} if field.startswith("dry") else {}
                if field in ("max_tokens", "n_predict", "max_completion_tokens"):
                    continue
                response = client.post("/completion", json=body)
                assert response.status_code in (200, 400, 501), (field, number, response.text)
        assert server.engine_pid() == pid
        assert client.post("/completion", json=known).json()["content"] == text

"""A budget of thoughts outside chats: the body says how they are marked."""

from __future__ import annotations

import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import serving


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def client(worker):
    with serving(worker) as client:
        yield client


def test_tags_say_which_thoughts_a_budget_limits(client, worker):
    tags = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</t>", "", "."]}
    budget = {"reasoning_budget_tokens": 5, "reasoning_budget_message": "Enough."}
    limits = []
    for prompt in ("a", "a<think>b", "a<think>b</t>c"):
        body = {"prompt": prompt, **tags, **budget}
        assert client.post("/completion", json=body).status_code == 200
        limits.append(worker.requests[-1].thoughts)
    assert [limit.is_thinking for limit in limits] == [False, True, False]
    first = limits[0]
    assert (first.max_tokens, first.start, first.end) == (5, b"<think>", b"</t>")
    assert first.further_ends == (b".",)
    assert bytes(first.closing) == b"Enough.</t>"
    single = {"reasoning_budget_start_tag": "<", "reasoning_budget_end_tag": ">"}
    for fields, expected in (
        (single | budget, b">"),
        (single, None),
        (budget, None),
        (single | {"reasoning_budget_tokens": -1}, None),
    ):
        assert client.post("/completion", json={"prompt": "a"} | fields).status_code == 200
        limit = worker.requests[-1].thoughts
        assert (limit and limit.end) == expected
    for missing in ("end_tags", "start_tag"):
        fields = {name: tag for name, tag in tags.items() if not name.endswith(missing)}
        bad = client.post("/completion", json={"prompt": "a"} | fields | budget)
        assert f"says nothing without reasoning_budget_{missing}" in bad.text
        assert bad.status_code == 400

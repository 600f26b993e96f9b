"""Our prompts against llama-server's, for all templates of its collection."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import asdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.templates.conversations import BUILT_IN_CONVERSATIONS, CONVERSATIONS, FIXTURE

from headstart.engine.chat_templates import built_in_templates
from headstart.server.answer_numbers import generation_settings
from headstart.server.conversation import render_chat
from headstart.server.schemas import ChatBody, CompletionBody, NativeBody
from headstart.server.service import ServedModel
from headstart.testing import ByteVocab
from headstart.text.chat_template import ChatTemplate
from headstart.types.errors import HeadstartError
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

BOS, EOS = "<|endoftext|>", "<|im_end|>"  # of the demo model, which lent them to the recording
REFUSED = "the template refuses"


@cache
def recording() -> dict[str, Any]:
    return json.loads(lzma.decompress(FIXTURE.read_bytes()))


def template_of(source: str) -> ChatTemplate:
    now = datetime.fromisoformat(recording()["recorded_at"])
    return ChatTemplate(
        source, bos_token=BOS, eos_token=EOS, now=lambda: now, built_in=built_in_templates()
    )


def prompt(template: ChatTemplate, body: dict[str, Any]) -> str:
    try:
        model = ServedModel(alias="m", vocab=ByteVocab(), template=template)
        chat = render_chat(ChatBody.model_validate(body), model)
    except HeadstartError:
        return REFUSED
    return chat.text


def expected(name: str, conversation: str) -> str:
    recorded = (recording()["prompts"] | recording()["built_in"])[name][conversation]
    return recorded if isinstance(recorded, str) else REFUSED


@cache
def differences_with_a_reason() -> dict[str, set[str]]:
    """template -> conversations, from the table in docs/prompts.md."""
    text = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| ([\w, ]+) \| [^|]+ \|$", text, re.M)
    return {name: set(conversations.split(", ")) for name, conversations in rows}


@pytest.mark.parametrize("name", sorted({**recording()["templates"], **recording()["built_in"]}))
def test_prompts_are_llama_servers_or_differ_for_a_stated_reason(name):
    template = template_of(recording()["templates"].get(name, name))
    is_built_in = name in recording()["built_in"]
    differing = {
        conversation
        for conversation, body in (BUILT_IN_CONVERSATIONS if is_built_in else CONVERSATIONS).items()
        if prompt(template, body) != expected(name, conversation)
    }
    assert differing == differences_with_a_reason().get(name, set())


@pytest.mark.parametrize("name", sorted(recording()["templates"]))
def test_capabilities_are_llama_servers(name):
    template = template_of(recording()["templates"][name])
    assert asdict(template.capabilities) == recording()["prompts"][name]["caps"]


def test_the_recording_has_every_conversation_of_seventy_templates():
    assert len(recording()["prompts"]) == 70
    for prompts in recording()["prompts"].values():
        assert prompts.keys() == CONVERSATIONS.keys() | {"caps"}


def test_sampling_parameters_have_llama_servers_defaults():
    request = Request(request_id="", prompt=(), sampling=SamplingParams())
    ours = json.loads(json.dumps(generation_settings(request, {"n_max": 0})))
    theirs = recording()["defaults"]
    assert theirs.keys() <= ours.keys()
    named = {"seed", "chat_format", "reasoning_format"}  # of the server or the template
    rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in theirs.items()}
    assert {k: ours[k] for k in theirs if k not in named} == {
        k: v for k, v in rounded.items() if k not in named
    }


def test_every_name_of_llama_server_is_known():
    assert recording()["built_in"].keys() == built_in_templates().keys()


ROUTES = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/completion": NativeBody,
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("path", ROUTES)
@settings(
    max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_body_makes_the_server_fail(client, path, data):
    body_class: Any = ROUTES[path]
    names = st.sampled_from([*body_class.model_fields, "speculative.n_max", "speculative.type"])
    body = {"messages": [{"role": "user", "content": "a"}], "prompt": "a"} | data.draw(
        st.dictionaries(names, VALUES, max_size=4)
    )
    try:
        response = client.post(path, json=body)
    except (ValueError, UnicodeEncodeError):
        return  # the client cannot write it
    if response.status_code != 200:
        error = response.json()["error"]
        assert response.status_code == error["code"] == 400
        assert error["message"]

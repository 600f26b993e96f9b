"""What a newcomer tries first on the demo model is answered right, and from drafts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape

import httpx2
import pytest
from tests.rules.source import ROOT

from headstart.app.demo import PROMPT

CODE = re.compile(r"```python\n.*?```", re.DOTALL)


def prompts() -> dict[str, str]:
    """Every prompt that we suggest, by where it stands."""
    found = {"generate": PROMPT}
    for file in sorted((ROOT / "src/headstart/web/words").glob("*.js")):
        listed = re.findall(r"^ +(\"(?:Rename|Describe).*```\"),$", file.read_text("utf-8"), re.M)
        assert listed, f"{file} suggests nothing"
        found |= {f"{file.name}-{i}": json.loads(text) for i, text in enumerate(listed, 1)}
    for name in ("README.md", "examples/curl.sh"):
        text = (ROOT / name).read_text("utf-8")
        questions = re.findall(r"(Rename `data`.*?```python.*?```)", text)
        assert questions, f"{name} suggests nothing"
        found |= {f"{name}-{i}": json.loads(f'"{q}"') for i, q in enumerate(questions, 1)}
    return found


def right_answer(prompt: str) -> str:
    code = CODE.findall(prompt)[0]
    if prompt.startswith("Rename"):
        return code.replace("data", "buffer")
    assert prompt.startswith("Describe this function as JSON")
    return '{"name": "write", "arguments": ["self", "data"], "returns": true}'


@pytest.mark.parametrize(
    ("where", "prompt"), [pytest.param(*i, id=i[0]) for i in prompts().items()]
)
def test_a_suggested_prompt_is_answered_right_and_from_drafts(where, prompt, server_address: str):
    for seed in range(3):
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "seed": seed,
            "speculative": {"mode": "fixed"},  # control may find that drafts do not pay here
        }
        answer = httpx2.post(f"http://{server_address}/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == right_answer(prompt)
        assert answer["timings"]["draft_n_accepted"] > 8


def test_the_example_for_curl_prints_the_right_answer_twice_and_counts_of_drafts(server_address):
    done = subprocess.run(
        ["sh", str(ROOT / "examples/curl.sh")],
        env=os.environ | {"HEADSTART_URL": f"http://{server_address}"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    contents = [one["choices"][0]["message"]["content"] for one in answers]
    assert contents == [right_answer(PROMPT)] * 2
    assert "\nheadstart_draft_tokens_accepted_total{" in done.stdout


def test_generate_without_a_prompt_shows_a_right_answer_and_what_drafts_did() -> None:
    command = [sys.executable, "-m", "headstart", "generate", "--spec", "fixed"]
    result = subprocess.run(command, input="", capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert right_answer(PROMPT) in result.stdout
    picture = (ROOT / "docs/images/generate.svg").read_text("utf-8")
    shown = unescape(re.sub(r"<style.*?</style>|<[^>]+>", "", picture, flags=re.DOTALL))
    squeezed = "".join(shown.replace("\xa0", " ").split())  # a new span for each style
    text = result.stdout.rpartition("\n\n")[0]  # without counts, which depend on the machine
    assert "".join(text.split()) in squeezed, "run scripts/generate_svg.py"
    tokens, time, steps = result.stdout.splitlines()[-3:]
    assert re.fullmatch(r"28 tokens: \d+ from the model, .*\d+ accepted from .*", tokens)
    assert re.fullmatch(r"[\d.]+ s, [\d.]+ tokens/s(; without drafts .*)?", time)
    assert re.match(r"\d+ steps for 28 tokens; ", steps)

"""Records how llama-server reads answers: thoughts, content and tool calls, template by template.

The answers are what each chat template makes of known ones (tests/templates/answers.py), and the
test tests/unit/text/toolcalls/test_llama_server_parses.py compares ours with the recording. Run it
again for another commit of llama.cpp, after tests/templates/record_llama_server_prompts.py:

    c++ -std=c++17 -I L/common -I L/include -I L/ggml/include -o parser \
        tests/templates/llama_server_parser.cpp -L L/build/bin \
        -lllama-common -lllama -lggml -lggml-base -Wl,-rpath,L/build/bin
    python tests/templates/record_llama_server_parses.py --parser ./parser

with L the source tree of llama.cpp, built in build/bin.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.templates.answers import PARSES, QUESTION, answer_texts
from tests.templates.conversations import FIXTURE, TOOLS

from headstart.text.chat_template import ChatTemplate


def main() -> None:
    """Record all templates and write the fixture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parser", type=Path, required=True)
    options = parser.parse_args()
    templates = json.loads(lzma.decompress(FIXTURE.read_bytes()))["templates"]
    jobs = [job for name, source in templates.items() for job in _jobs(name, source)]
    lines = "".join(json.dumps(job | {"template": templates[job["name"]]}) + "\n" for job in jobs)
    found = subprocess.run(
        [str(options.parser)], input=lines, capture_output=True, text=True, check=True
    )
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    recording = [
        {key: job[key] for key in ("name", "kind", "text")}
        | {"generation_prompt": answer.get("generation_prompt", "")}
        | {"message": answer.get("message")}
        for job, answer in zip(jobs, answers, strict=True)
    ]
    data = json.dumps(recording, ensure_ascii=False).encode()
    PARSES.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    print(f"{PARSES}: {len(recording)} answers, {PARSES.stat().st_size:,} bytes")


def _jobs(name: str, source: str) -> list[dict[str, Any]]:
    template = ChatTemplate(source)
    common = {
        "name": name,
        "messages": [QUESTION],
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "enable_thinking": template.thinking is not None,
        "reasoning_format": "auto",
    }
    texts = answer_texts(template)
    return [common | {"kind": kind, "text": text} for kind, text in texts.items()]


if __name__ == "__main__":
    main()

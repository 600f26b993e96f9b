"""Records which prompts llama-server makes of conversations, for every template of its collection.

The test tests/server/test_llama_server_prompts.py compares ours with the recording. Run it again
for another commit of llama.cpp:

    python tests/templates/record_llama_server_prompts.py --llama-cpp LLAMA_CPP \
        --llama-server BINARY --model MODEL.gguf

LLAMA_CPP is the source tree. The model only lends its start and end tokens. Every template gets a
server of its own, which renders by POST /apply-template; what /props says of the sampling
parameters is recorded as well.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from headstart.extras.bench.client import running

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.templates.conversations import BUILT_IN_CONVERSATIONS, CONVERSATIONS, FIXTURE  # noqa: E402


def main() -> None:
    """Record all templates and write the fixture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    recorder = Recorder(options.llama_cpp, options.llama_server, options.model)
    templates = sorted((options.llama_cpp / "models" / "templates").glob("*.jinja"))
    recording: dict[str, Any] = {"recorded_at": datetime.now().isoformat(timespec="seconds")}
    recording["templates"] = {path.stem: path.read_text(encoding="utf-8") for path in templates}
    recording["prompts"] = {
        path.stem: recorder.record(["--chat-template-file", str(path)], CONVERSATIONS)
        for path in templates
    }
    recording["built_in"] = {
        name: recorder.record(["--no-jinja", "--chat-template", name], BUILT_IN_CONVERSATIONS)
        for name in recorder.built_in_names()
    }
    recording["defaults"] = recorder.defaults
    data = json.dumps(recording, ensure_ascii=False).encode()
    FIXTURE.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    print(f"{FIXTURE}: {FIXTURE.stat().st_size:,} bytes of {len(data):,}")


class Recorder:
    """Starts llama-server once for each template and asks it for prompts."""

    def __init__(self, llama_cpp: Path, server: Path, model: Path) -> None:
        self.defaults: dict[str, Any] = {}  # of sampling parameters
        self._server = server
        self._model = model
        self._source = llama_cpp / "src" / "llama-chat.cpp"

    def built_in_names(self) -> list[str]:
        """The names that --chat-template takes, from the table in the source."""
        table = self._source.read_text().split("LLM_CHAT_TEMPLATES = {")[1].split("};")[0]
        return [line.split('"')[1] for line in table.splitlines() if '"' in line]

    def record(self, flags: list[str], conversations: dict[str, Any]) -> dict[str, Any]:
        """Return the prompt, or {"error": message}, for each conversation."""
        print(flags[-1], flush=True)
        command = [str(self._server), "-m", str(self._model), "-c", "512", "--no-warmup"]
        with (
            running([*command, "--no-webui", "-t", "1", *flags], Path(os.devnull)) as server,
            httpx2.Client(base_url=server.url, timeout=30, trust_env=False) as client,
        ):
            props = client.get("/props").json()
            self.defaults = props["default_generation_settings"]["params"]
            prompts = {name: _prompt(client, body) for name, body in conversations.items()}
            return prompts | {"caps": props.get("chat_template_caps")}


def _prompt(client: httpx2.Client, body: dict[str, Any]) -> Any:
    answer = client.post("/apply-template", json=body).json()
    if "error" in answer:
        return {"error": answer["error"]["message"].strip()[-300:]}
    return answer["prompt"]


if __name__ == "__main__":
    main()

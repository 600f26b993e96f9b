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
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.templates.conversations import (  # noqa: E402
    BUILT_IN_CONVERSATIONS,
    CONVERSATIONS,
    FIXTURE,
)


def main() -> None:
    """Record all templates and write the fixture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, default=18631)
    options = parser.parse_args()
    recorder = Recorder(options.llama_cpp, options.llama_server, options.model, options.port)
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

    def __init__(self, llama_cpp: Path, server: Path, model: Path, port: int) -> None:
        self.defaults: dict[str, Any] = {}  # of sampling parameters
        self._server = server
        self._model = model
        self._port = port
        self._source = llama_cpp / "src" / "llama-chat.cpp"

    def built_in_names(self) -> list[str]:
        """The names that --chat-template takes, from the table in the source."""
        table = self._source.read_text().split("LLM_CHAT_TEMPLATES = {")[1].split("};")[0]
        return [line.split('"')[1] for line in table.splitlines() if '"' in line]

    def record(self, flags: list[str], conversations: dict[str, Any]) -> dict[str, Any]:
        """Return the prompt, or {"error": message}, for each conversation."""
        print(flags[-1], flush=True)
        arguments = ["-m", str(self._model), "--port", str(self._port), "-c", "512", "--no-warmup"]
        with subprocess.Popen(
            [str(self._server), *arguments, "--no-webui", "-t", "1", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server:
            try:
                self._wait(server)
                self.defaults = self._get("/props")["default_generation_settings"]["params"]
                return {name: self._prompt(body) for name, body in conversations.items()} | {
                    "caps": self._get("/props").get("chat_template_caps")
                }
            finally:
                server.terminate()

    def _wait(self, server: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            try:
                self._get("/health")
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"llama-server did not start: {server.args!r}")

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            return json.load(answer)

    def _prompt(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/apply-template",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)["prompt"]
        except urllib.error.HTTPError as error:
            return {"error": json.load(error)["error"]["message"].strip()[-300:]}


if __name__ == "__main__":
    main()

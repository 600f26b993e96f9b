"""A stand-in of the Hugging Face hub on the loopback: the routes that huggingface_hub asks."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headstart.app.model_files import Models, find_models
from headstart.config import Config, ImageConfig, ModelConfig, SpeculationConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Repositories of named files; what was asked is recorded."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.needs_token: dict[str, str] = {}
        self.downloads: list[str] = []
        self.failing_status: int | None = None

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator[FakeHub]:
        """One that answers until the block ends."""
        with cls() as server:
            poll = {"poll_interval": 0.01}
            thread = threading.Thread(target=server.serve_forever, kwargs=poll, daemon=True)
            thread.start()
            yield server
            server.shutdown()
            thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, repo: str, *paths: str) -> None:
        self.repos[repo] = {path: f"content of {path}".encode() for path in paths}


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if is_api else parts[:2])
        files = self.server.repos.get(repo)
        token = self.server.needs_token.get(repo)
        if self.server.failing_status:
            self._send(self.server.failing_status, b"{}")
        elif files is None or (token and self.headers.get("Authorization") != f"Bearer {token}"):
            self._send(401, b'{"error": "Repository Not Found"}', {"X-Error-Code": "RepoNotFound"})
        elif is_api:
            info = {"id": repo, "sha": COMMIT, "siblings": [
                {"rfilename": path, "size": len(content)} for path, content in files.items()
            ]}  # fmt: skip
            self._send(200, json.dumps(info).encode())
        elif repo in self.server.gated:
            self._send(403, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"})
        elif (path := "/".join(parts[4:])) in files:
            if self.command == "GET":
                self.server.downloads.append(path)
            self._send(
                200, files[path], {"ETag": f'"{_sha(files[path])}"', "X-Repo-Commit": COMMIT}
            )
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class Client:
    """Resolves models against the stand-in, with a cache of its own."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        self.hub = hub
        self.environment = {"HF_ENDPOINT": hub.endpoint, "LLAMA_CACHE": str(cache)}

    def find(
        self,
        hf_repo: str | None = None,
        *,
        spec_type: str | None = None,
        images: ImageConfig | None = None,
        **options: Any,
    ) -> Models:
        config = Config(
            model=ModelConfig(hf_repo=hf_repo, **options),
            images=images or ImageConfig(),
            speculation=SpeculationConfig(spec_type=spec_type),
        )
        return find_models(config, self.environment)

    def target(self, hf_repo: str, **options: Any) -> Path:
        return self.find(hf_repo, spec_type="suffix", **options).target

"""A stand-in of the Hugging Face hub on the loopback: the routes that huggingface_hub asks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.server.serving import serving_app

from headstart.app.model_files import Models, find_models
from headstart.config import Config, ImageConfig, ModelConfig, SpeculationConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories of named files; what was asked is recorded."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.needs_token: dict[str, str] = {}
        self.downloads: list[str] = []
        self.failing_status: int | None = None

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator[FakeHub]:
        """One that answers until the block ends."""
        hub = cls()
        with serving_app(Starlette(routes=[Route("/{path:path}", hub._answer)])) as hub.endpoint:
            yield hub

    def add(self, repo: str, *paths: str) -> None:
        self.repos[repo] = {path: f"content of {path}".encode() for path in paths}

    async def _answer(self, request: Request) -> Response:
        parts = request.path_params["path"].split("/")
        is_api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if is_api else parts[:2])
        files = self.repos.get(repo)
        token = self.needs_token.get(repo)
        if self.failing_status:
            return Response(b"{}", self.failing_status)
        if files is None or (token and request.headers.get("Authorization") != f"Bearer {token}"):
            return Response(b"{}", 401, {"X-Error-Code": "RepoNotFound"})
        if is_api:
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            return JSONResponse({"id": repo, "sha": COMMIT, "siblings": siblings})
        if repo in self.gated:
            return Response(b"{}", 403, {"X-Error-Code": "GatedRepo"})
        found = files.get(path := "/".join(parts[4:]))
        if found is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
            return Response(b"{}", 404, headers)
        if request.method == "GET":
            self.downloads.append(path)
        etag = hashlib.sha1(found).hexdigest()
        return Response(found, headers={"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})


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

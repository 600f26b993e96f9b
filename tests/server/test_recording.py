"""`--record-texts` of a real server: what clients said about `store` is obeyed on every route."""

from __future__ import annotations

from pathlib import Path

from tests.server.server_process import Server

from headstart.app.demo import TARGET, path
from headstart.extras.distill.texts import read_texts
from headstart.structures.model_id import ModelId
from headstart.structures.tenants import namespace_of_key

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def test_only_what_may_be_recorded_is_on_the_disk_after_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    flags = ["-c", "512", "--record-texts", str(folder), "--api-key", "open,shut"]
    with Server([*flags, "--record-tenants", "open"], tmp_path) as server:

        def post(key: str, route: str, **body: object) -> None:
            with server.client(authorization=f"Bearer {key}") as client:
                assert client.post(route, json=body).status_code == 200

        post("open", "/v1/chat/completions", **CHAT, seed=1)
        post("open", "/v1/chat/completions", **CHAT, seed=2, store=False)
        post("open", "/v1/responses", input="Hi", max_output_tokens=4, seed=3, store=False)
        post("shut", "/v1/chat/completions", **CHAT, seed=4)
        post("shut", "/v1/responses", input="Hi", max_output_tokens=4, seed=5)  # its default
        post("shut", "/completion", prompt="Hi", n_predict=4, seed=6, store=True)
        assert server.stop() == 0
    found = read_texts(folder, ModelId.of(path(TARGET)).digest)
    tenants = {namespace_of_key(key.encode()): key for key in ("open", "shut")}
    assert {(tenants[text.tenant], text.sampling.seed) for text in found} == {
        ("open", 1),
        ("shut", 6),
    }

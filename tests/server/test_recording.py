"""`--record-texts` with a real engine: what clients said about `store` is obeyed on every route."""

from __future__ import annotations

from pathlib import Path

from tests.server.serving import serving_models

from headstart.app.demo import TARGET, path
from headstart.config import (
    Config,
    EngineConfig,
    RecordingConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.extras.distill.texts import read_texts
from headstart.structures.model_id import ModelId
from headstart.structures.tenants import namespace_of_key

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def test_only_what_may_be_recorded_is_on_the_disk_after_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    config = Config(
        engine=EngineConfig(context=512, threads=1),
        speculation=SpeculationConfig(spec="off"),
        server=ServerConfig(api_key="open,shut"),
        recording=RecordingConfig(record_texts=str(folder), record_tenants="open"),
    )
    with serving_models(config) as client:

        def post(key: str, route: str, **body: object) -> None:
            headers = {"authorization": f"Bearer {key}"}
            assert client.post(route, json=body, headers=headers).status_code == 200

        post("open", "/v1/chat/completions", **CHAT, seed=1)
        post("open", "/v1/chat/completions", **CHAT, seed=2, store=False)
        post("open", "/v1/responses", input="Hi", max_output_tokens=4, seed=3, store=False)
        post("shut", "/v1/chat/completions", **CHAT, seed=4)
        post("shut", "/v1/responses", input="Hi", max_output_tokens=4, seed=5)  # its default
        post("shut", "/completion", prompt="Hi", n_predict=4, seed=6, store=True)
    found = read_texts(folder, ModelId.of(path(TARGET)).digest)
    tenants = {namespace_of_key(key.encode()): key for key in ("open", "shut")}
    assert {(tenants[text.tenant], text.sampling.seed) for text in found} == {
        ("open", 1),
        ("shut", 6),
    }

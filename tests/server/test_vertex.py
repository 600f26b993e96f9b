"""Vertex AI's protocol: several requests in one, each answered by its route."""

from __future__ import annotations

import pytest
from starlette.routing import Route
from tests.server.fake_worker import FakeWorker
from tests.server.serving import served_model, serving

from headstart.config import ServerConfig, ToolsConfig
from headstart.extras.vertex import PATHS
from headstart.server.app import create_app
from headstart.server.extras import Extras
from headstart.types.errors import ConfigError

ENVIRONMENT = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "9001", "AIP_HEALTH_ROUTE": "ping"}
CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "a"}]}


def extras(**environment: str) -> Extras:
    return Extras.of(ToolsConfig(), ENVIRONMENT | environment)


def test_the_environment_says_where():
    outside = Extras.of(ToolsConfig(), {"AIP_HTTP_PORT": "1"})
    assert outside.applied(ServerConfig()) == ServerConfig()
    assert extras().applied(ServerConfig()).port == 9001
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT"):
        extras(AIP_HTTP_PORT="x")


def test_instances_are_answered_by_their_routes_in_order():
    instances = [
        CHAT | {"stream": True},
        {"@requestFormat": "/tokenize", "content": "ab"},
        {"@requestFormat": "detokenize", "tokens": "ab"},
        {"@requestFormat": "predict"},
        {"content": "ab"},
        1,
    ]
    with serving(config=ServerConfig(api_key="k"), extras=extras()) as client:
        assert client.post("/predict", json={"instances": []}).status_code == 401
        client.headers["Authorization"] = "Bearer k"
        response = client.post("/predict", json={"instances": instances})
        for body in ([], {}, {"instances": 1}, {"instances": [1] * 129}):
            assert client.post("/predict", json=body).status_code == 400
        assert client.get("/ping").json() == {"status": "ok"}
    predictions = response.json()["predictions"]
    assert predictions[0]["choices"][0]["message"]["role"] == "assistant"
    assert predictions[1] == {"tokens": [97, 98]}
    assert "tokens" in predictions[2]["error"]["message"]
    for one in predictions[3:]:
        assert one["error"]["code"] == 400


def test_all_that_an_instance_may_name_is_served_and_the_path_is_nobody_elses():
    app = create_app(ServerConfig(), FakeWorker(), served_model)
    assert {route.path for route in app.routes if isinstance(route, Route)}.issuperset(PATHS)
    taken = extras(AIP_PREDICT_ROUTE="/tokenize")
    with pytest.raises(ConfigError, match="AIP_PREDICT_ROUTE"):
        create_app(ServerConfig(), FakeWorker(), served_model, extras=taken)

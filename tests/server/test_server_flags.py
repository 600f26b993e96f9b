"""llama-server's flags of the HTTP side: where the server listens, under which paths, and how."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn
from tests.server.fake_worker import FakeWorker
from tests.server.serving import served_model, serving

from headstart.config import SamplingConfig, ServerConfig
from headstart.server.listen import serve, take_port
from headstart.server.sampling import request_defaults
from headstart.server.service import ServedModel
from headstart.types.errors import ConfigError, ModelError
from headstart.types.sampling_params import LogitBias


def test_paths_begin_with_the_prefix():
    with serving(config=ServerConfig(api_prefix="/llm"), wait=False) as client:
        while client.get("/llm/health").status_code != 200:
            pass
        assert client.get("/llm/v1/models").status_code == 200
        missing = client.get("/health")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
        wrong = client.get("/llm/v1/chat/completions").json()["error"]["message"]
        assert wrong.startswith("/llm/v1/chat/completions does not take GET")
        unknown = client.get("/llm/v1/model").json()["error"]["message"]
        assert " no /llm/v1/model here; did you mean /llm/v1/models? (/llm/openapi.json " in unknown


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The process that serves ends, and keeps its handlers of signals until then."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_it_listens_on_several_addresses_and_a_unix_socket(tmp_path: Path, monkeypatch):
    path = tmp_path / "h.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))  # nobody listens: what a killed server leaves behind
    stale.close()
    announced = threading.Event()
    config = ServerConfig(host=f"127.0.0.1,{path}", port=0)
    servers = list[uvicorn.Server]()

    def note(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        servers.append(server)
        asyncio.run(server.serve(sockets=sockets))

    monkeypatch.setattr(uvicorn.Server, "run", note)
    worker = FakeWorker()
    thread = threading.Thread(
        target=serve,
        args=(config, worker, served_model, lambda *_: announced.set(), ()),
        daemon=True,
    )
    thread.start()
    assert announced.wait(20)
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://headstart/v1/models").json()["data"][0]["id"] == "tiny"
    servers[0].should_exit = True
    thread.join(20)
    assert not path.exists()


def test_a_port_of_a_unix_socket_in_use_is_refused(tmp_path: Path):
    path = tmp_path / "h.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match=r"cannot listen on .*h\.sock"):
            serve(ServerConfig(host=str(path)), FakeWorker(), served_model, print, ())


def test_a_unix_socket_is_removed_if_another_address_cannot_be_taken(tmp_path: Path):
    path = tmp_path / "h.sock"
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = ServerConfig(host=f"{path},127.0.0.1", port=other.getsockname()[1])
        with pytest.raises(ConfigError, match="cannot listen on 127"):
            serve(config, FakeWorker(), served_model, print, ())
    assert not path.exists()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"ssl_key_file": "k"}, "both --ssl-key-file and --ssl-cert-file"),
        ({"api_prefix": "llm"}, "must start with a slash"),
    ],
)
def test_a_flag_that_cannot_work_is_refused(config, says):
    with pytest.raises(ConfigError, match=says):
        ServerConfig(**config)


def test_flags_beat_the_models_recommendation_beats_the_defaults():
    metadata = {
        "general.sampling.temp": "0.6", "general.sampling.top_k": "20",
        "general.sampling.sequence": "top_k;unknown;temperature", "general.sampling.min_p": "x",
    }  # fmt: skip
    defaults = request_defaults(
        SamplingConfig(
            numbers={"temperature": 0.1}, seed=5, predict=7, reverse_prompt=r"User:\n",
            logit_bias="5+1.5,6-inf", dry_sequence_breaker=r"\t",
        ),
        metadata, 256,
    )  # fmt: skip
    sampling = defaults.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.1, 20, 0.05)
    assert sampling.samplers == ("top_k", "temperature")
    assert (defaults.seed, defaults.max_tokens, defaults.stop) == (5, 7, ("User:\n",))
    assert sampling.logit_bias == LogitBias({5: 1.5, 6: -float("inf")})
    assert sampling.dry_sequence_breakers == ("\t",)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"numbers": {"repeat_penalty": -1.0}}, "a sampling flag is out of range: repeat_penalty"),
        ({"logit_bias": "five+1"}, "must be as 15043"),
        ({"samplers": "top_k", "sampler_seq": "k"}, "two ways to say one thing"),
    ],
)
def test_a_sampling_flag_out_of_range_is_refused(config, says):
    with pytest.raises(ConfigError, match=says):
        request_defaults(SamplingConfig(**config), {}, 256)


def test_a_bias_of_a_token_that_the_model_lacks_is_left_out_with_a_warning(caplog):
    config = SamplingConfig(logit_bias="255+1,256-inf,70000+1")
    assert request_defaults(config, {}, 256).sampling.logit_bias == LogitBias({255: 1.0})
    (warning,) = caplog.messages
    assert "256, 70000" in warning
    assert "0 to 255" in warning


def test_a_request_gets_the_servers_defaults_where_it_says_nothing():
    defaults = request_defaults(
        SamplingConfig(
            numbers={"temperature": 0.1, "top_k": -5}, seed=5, predict=7, reverse_prompt="END"
        ),
        {},
        256,
    )
    worker = FakeWorker()
    with serving(worker, model=served_model(defaults=defaults)) as client:
        client.post("/completion", json={"prompt": "a"})
        client.post("/completion", json={"prompt": "a", "temperature": 2, "seed": -1, "stop": "x"})
        props = client.get("/props").json()["default_generation_settings"]["params"]
    plain, own = worker.requests
    assert (plain.sampling.temperature, plain.sampling.top_k) == (0.1, 0)
    assert (plain.sampling.seed, plain.max_tokens, plain.stop) == (5, 7, (b"END",))
    assert (own.sampling.temperature, own.stop) == (2, (b"x",))
    assert (props["temperature"], props["top_k"], props["seed"]) == (0.1, 0, 5)


def test_a_port_in_use_is_named_with_the_remedy():
    with take_port(ServerConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*in use.*; choose another --port"):
            serve(ServerConfig(port=port), FakeWorker(), served_model, print, ())


def test_an_address_that_is_not_ours_is_a_config_error():
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1.*another --host"):
        take_port(ServerConfig(host="192.0.2.1"))
    with pytest.raises(ConfigError, match="--host is ', ' but must name an address"):
        serve(ServerConfig(host=", "), FakeWorker(), served_model, print, ())


@pytest.mark.parametrize(
    "files", [{"api_key_file": "/no"}, {"ssl_cert_file": "/no", "ssl_key_file": "/no"}]
)
def test_a_file_that_cannot_be_read_stops_the_start_with_its_flag(files):
    flag = next(iter(files)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"--{flag} /no .*No such file"):
        serve(ServerConfig(port=0, **files), FakeWorker(), served_model, print, ())


def test_sockets_name_their_protocol_so_that_tokens_are_sent_at_once():
    with take_port(ServerConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_serving_ends_with_the_reason_when_the_model_cannot_be_loaded(caplog):
    worker, announced = FakeWorker(), []
    worker.start_error = ModelError("draft.gguf is truncated")
    with pytest.raises(ModelError, match="truncated"):
        serve(
            ServerConfig(port=0),
            worker,
            served_model,
            lambda *told: announced.append(told),
            (),
        )
    assert worker.is_closed
    assert announced == []
    assert "truncated" not in caplog.text  # whoever gets the exception prints it


def test_the_address_is_announced_once_requests_can_be_answered_and_ctrl_c_is_no_failure():
    worker, loaded, announced = FakeWorker(), [], []

    def load() -> ServedModel:
        loaded.append(worker.status)
        return served_model()

    def announce(url: str, model: dict) -> None:
        announced.append((url, list(loaded)))
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    serve(ServerConfig(port=0), worker, load, announce, ())
    signal.raise_signal(signal.SIGINT)  # impatient: the process ends already
    [(url, loaded_before)] = announced
    assert url.startswith("http://127.0.0.1:")
    assert loaded_before == ["ready"]


def test_the_event_loop_has_the_interpreter_back_within_a_millisecond():
    noted = list[float]()
    sys.setswitchinterval(0.005)  # as in a new process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "run", lambda *_, **__: noted.append(sys.getswitchinterval()))
        serve(ServerConfig(port=0), FakeWorker(), served_model, print, ())
    assert noted[0] < 0.001

"""Which models a router serves, and the command line of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.app.cli.models import is_router, read_models
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.serve import COMMAND
from headstart.gateway.router.presets import CACHE, FOLDER, PRESET, ModelPreset
from headstart.types.errors import ConfigError


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"LLAMA_CACHE": str(tmp_path / "hub"), "PATH": "/bin"}


def flags(*argv: str) -> Resolved:
    return COMMAND.read(argv)


def models(environment, *argv: str) -> dict[str, ModelPreset]:
    return {one.name: one for one in read_models(flags(*argv), environment)}


def cached(environment, repo: str, *files: str) -> None:
    folder = Path(environment["LLAMA_CACHE"]) / ("models--" + repo.replace("/", "--"))
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    for file in files:
        path = folder / "snapshots" / "abc" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def preset(tmp_path: Path, text: str) -> str:
    file = tmp_path / "models.ini"
    file.write_text(text)
    return f"--models-preset={file}"


@pytest.mark.parametrize(
    ("argv", "routes"),
    [
        ([], False),
        (["-m", "a.gguf", "--models-max", "2"], False),
        (["-hf", "a/b", "--models-dir", "x"], False),
        (["--models-dir", "x"], True),
        (["--models-preset", "x"], True),
        (["--models-max", "2"], True),
        (["--no-models-autoload"], True),
    ],
)
def test_a_router_is_started_where_models_are_to_be_found_and_none_is_named(argv, routes) -> None:
    assert is_router(flags(*argv)) is routes


def test_without_the_demo_a_hub_cache_with_models_makes_a_router(environment, monkeypatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", environment["LLAMA_CACHE"])
    assert not is_router(flags(), has_demo=False)
    cached(environment, "a/b", "b-Q8_0.gguf")
    assert is_router(flags(), has_demo=False)
    assert not is_router(flags())
    assert not is_router(flags("-m", "a.gguf"), has_demo=False)


def test_a_folder_has_a_model_a_file_and_a_model_a_folder(tmp_path, environment) -> None:
    names = ("a.gguf", "mmproj-a.gguf", "mtp-a.gguf", "note.txt", "b/x-00002-of-00002.gguf",
             "b/x-00001-of-00002.gguf", "c/mmproj-F16.gguf", "c/x.gguf", "empty/x.txt",
             "MMPROJ-F16.gguf", "MTP-a.gguf", "d-mtp-Q8_0.gguf", "e-eagle3-merge.gguf",
             "g/mmproj-F16.gguf", "g/x.gguf", "b/a.gguf", "c.gguf",
             "f-00001-of-00002.gguf", "f-00002-of-00002.gguf")  # fmt: skip
    for name in names:
        (tmp_path / "dir" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dir" / name).write_bytes(b"")
    found = models(environment, "--models-dir", str(tmp_path / "dir"))
    files = {
        name: one.arguments[0].removeprefix(f"--model={tmp_path}/dir/")
        for name, one in found.items()
    }
    alone = ("a", "c", "d-mtp-Q8_0", "e-eagle3-merge", "f-00001-of-00002")
    assert files == {name: f"{name}.gguf" for name in alone} | {
        "b": "b/x-00001-of-00002.gguf", "g": "g/x.gguf",
    }  # fmt: skip
    assert {one.source for one in found.values()} == {FOLDER}


@pytest.mark.parametrize(
    ("flags", "drafts"),
    [
        ([], True),
        (["--spec-type", "suffix"], False),
        (["--spec-type", "suffix,draft-dspark"], True),
        (["--draft-hf-repo", "a/b"], False),
    ],
)
def test_a_folder_has_a_projector_and_a_draft_model_for_its_model(
    tmp_path, environment, flags, drafts
) -> None:
    folder = tmp_path / "dir" / "m"
    folder.mkdir(parents=True)
    names = ("m-Q8_0.gguf", "mmproj-m.gguf", "dflash-m.gguf", "dspark-m-Q8_0.gguf", "mtp-m.gguf")
    for name in (*names, "dspark-m-Q4_0.gguf"):
        (folder / name).touch()
    (one,) = models(environment, "--models-dir", str(folder.parent), *flags).values()
    drafter = [f"--draft-model={folder}/dspark-m-Q8_0.gguf"] * drafts
    files = [f"--model={folder}/m-Q8_0.gguf", f"--mmproj={folder}/mmproj-m.gguf", *drafter]
    assert sorted(set(one.arguments) & {*files}) == sorted(files)
    assert any("--draft-model=" in part for part in one.arguments) is drafts


def test_a_draft_model_named_for_all_models_beats_that_of_a_folder(tmp_path, environment) -> None:
    for name in ("x.gguf", "dflash-x.gguf"):
        (tmp_path / "dir" / "m").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dir" / "m" / name).touch()
    argv = ("--models-dir", str(tmp_path / "dir"), "-md", "own.gguf", "--spec-type", "draft-model")
    assert "--draft-model=own.gguf" in models(environment, *argv)["m"].arguments


def test_a_folder_in_it_that_may_not_be_read_costs_its_own_model_only(
    tmp_path, environment, monkeypatch, caplog
) -> None:
    folder = tmp_path / "dir"
    for name in ("closed", "open"):
        (folder / name).mkdir(parents=True)
        (folder / name / "x.gguf").touch()
    look = Path.iterdir

    def iterdir(path):  # root may read whatever the mode says
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return look(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert list(models(environment, "--models-dir", str(folder))) == ["open"]
    assert f"{folder / 'closed'} of --models-dir cannot be read" in caplog.text


def test_a_folder_that_is_not_there_is_refused(environment) -> None:
    with pytest.raises(ConfigError, match="--models-dir /nowhere cannot be read"):
        models(environment, "--models-dir", "/nowhere")


def test_the_cache_of_the_hub_is_listed_as_llama_server_lists_it(environment) -> None:
    cached(environment, "org/one", "one-Q4_K_M.gguf", "one-q8_0.gguf", "mmproj-one-F16.gguf")
    cached(
        environment, "org/two", "sub/two.F16-00001-of-00002.gguf", "sub/two.F16-00002-of-00002.gguf"
    )
    found = models(environment, "--models-max", "1")
    assert sorted(found) == ["org/one:Q4_K_M", "org/one:Q8_0", "org/two:F16"]
    assert found["org/two:F16"].source == CACHE
    assert {"--hf-repo=org/two:F16", "--offline=on"} <= set(found["org/two:F16"].arguments)


def test_the_command_line_beats_the_model_which_beats_all_models(tmp_path, environment) -> None:
    every = "version = 1\n[*]\nc = 1024\nnp = 2\ntemp = 0.1\n"
    text = every + "[m]\nmodel = m.gguf\nc = 2048\ntemp = 0.2\n"
    found = models(environment, preset(tmp_path, text), "--temp", "0.3")["m"]
    assert found.source == PRESET
    assert set(found.arguments) == {
        "--model=m.gguf",
        "--context=2048",
        "--parallel=2",
        "--temp=0.3",
    }
    assert "temp = 0.3" in found.ini


def test_keys_are_flags_short_forms_or_names_of_the_environment(tmp_path, environment) -> None:
    text = "[m]\nm = m.gguf\nLLAMA_ARG_CTX_SIZE = 512\nno-mmap = true\njinja = true\nngl = 3\n"
    arguments = models(environment, preset(tmp_path, text))["m"].arguments
    assert set(arguments) == {"--model=m.gguf", "--context=512", "--mmap=off", "--gpu-layers=3"}


@pytest.mark.parametrize("key", ["load-on-startup", "no-mmap", "jinja", "mmap"])
def test_a_word_that_is_neither_on_nor_off_is_refused(tmp_path, environment, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.* is 'tru' but must be on or off"):
        models(environment, preset(tmp_path, f"[m]\nmodel = m.gguf\n{key} = tru\n"))


def test_what_only_the_router_reads_is_no_flag(tmp_path, environment) -> None:
    text = (
        "[*]\nstop-timeout = 3\nttl = 60\n[m]\nmodel = m.gguf\nload-on-startup = true\n"
        "alias = b, a\ntags = x\n"
    )
    found = models(environment, preset(tmp_path, text))["m"]
    assert found.arguments == ("--model=m.gguf",)
    assert (found.loads_on_startup, found.stop_seconds, found.idle_seconds) == (True, 3.0, 60.0)
    assert (found.aliases, found.tags) == (("a", "b"), ("x",))


def test_a_section_adds_to_the_model_of_its_name(tmp_path, environment) -> None:
    cached(environment, "org/one", "one-Q8_0.gguf")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a.gguf").write_bytes(b"")
    text = "[a]\nc = 512\n[org/one:Q8_0]\nc = 256\n[org/other:Q4_0]\nc = 128\n"
    found = models(environment, preset(tmp_path, text), "--models-dir", str(tmp_path / "dir"))
    assert found["a"].arguments == (f"--model={tmp_path}/dir/a.gguf", "--context=512")
    assert set(found["org/one:Q8_0"].arguments) == {
        "--hf-repo=org/one:Q8_0", "--offline=on", "--context=256",
    }  # fmt: skip
    assert set(found["org/other:Q4_0"].arguments) == {"--hf-repo=org/other:Q4_0", "--context=128"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[m]\nc = 512\n", "names no model"),
        ("[m]\nmodel = m.gguf\nc = many\n", "context of the model m is 'many'"),
        ("[m]\nmodel = m.gguf\nttl = soon\n", "ttl in the preset of m is 'soon'"),
        ("[m]\nmodel = m.gguf\nctx-sizes = 1\n", "which is no flag"),
        ("[m]\nmodel = m.gguf\nalias = n\n[n]\nmodel = n.gguf\n", "alias 'n' of the model m"),
    ],
)
def test_a_preset_that_cannot_work_is_refused(tmp_path, environment, text, says) -> None:
    with pytest.raises(ConfigError, match=says):
        models(environment, preset(tmp_path, text))


def test_what_is_the_routers_own_does_not_reach_its_models(tmp_path, environment) -> None:
    environment |= {
        "HEADSTART_PORT": "1", "LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_API_KEY": "outer",
        "LLAMA_ARG_MODELS_DIR": "x", "HEADSTART_TEMP": "0.5", "HEADSTART_CONFIG": "x",
    }  # fmt: skip
    text = "[m]\nmodel = m.gguf\nport = 99\napi-key = k\n"
    found = models(environment, preset(tmp_path, text), "--api-key", "outer", "--port", "1")["m"]
    assert found.arguments == ("--model=m.gguf",)
    assert set(found.environment) == {"LLAMA_CACHE", "PATH", "HEADSTART_TEMP"}


def test_secrets_stand_in_no_command_line(tmp_path, environment) -> None:
    found = models(environment, preset(tmp_path, "[m]\nmodel = m.gguf\n"), "-hft", "secret")["m"]
    assert "secret" not in " ".join((*found.arguments, found.ini, repr(found)))
    assert found.environment["HEADSTART_HF_TOKEN"] == "secret"


def test_a_cached_model_that_a_preset_has_is_hidden_on_request(tmp_path, environment) -> None:
    cached(environment, "org/one", "one-Q8_0.gguf")
    text = "[mine]\nhf-repo = org/one\n"
    assert not models(environment, preset(tmp_path, text))["org/one:Q8_0"].is_hidden
    for keys in (text + "dedup-cache-models = 1\n", "[*]\ndedup-cache-models = 1\n" + text):
        found = models(environment, preset(tmp_path, keys))
        assert (found["org/one:Q8_0"].is_hidden, found["mine"].is_hidden) == (True, False)

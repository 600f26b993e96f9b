"""Models from the hub: what is downloaded, what is reused, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.app.hub.fake_hub import COMMIT, Client, FakeHub

from headstart.app.hub import Hub, _Log, hub_cache
from headstart.app.hub_files import choose_drafter, choose_file, parse_reference
from headstart.config import ModelConfig
from headstart.types.errors import ConfigError, ModelError

REPO = "someone/Model-1B-GGUF"


def test_a_repository_becomes_a_file_in_the_cache_that_llama_cpp_shares(client, hub) -> None:
    hub.add(REPO, "README.md", "Model-1B-Q4_K_M.gguf", "Model-1B-Q8_0.gguf")
    path = client.target(REPO)
    assert path.read_text() == "content of Model-1B-Q4_K_M.gguf"
    expected = f"models--someone--Model-1B-GGUF/snapshots/{COMMIT}/Model-1B-Q4_K_M.gguf"
    assert path == Path(client.environment["LLAMA_CACHE"]) / expected
    assert hub.downloads == ["Model-1B-Q4_K_M.gguf"]


def test_a_log_says_how_far_a_download_is(client: Client, hub: FakeHub, caplog) -> None:
    hub.repos[REPO] = {"big-Q8_0.gguf": bytes(30 * 2**20)}
    with caplog.at_level("INFO"):
        client.target(REPO)
    (*_, last) = [line for line in caplog.messages if line.startswith("downloading ")]
    assert "big-Q8_0.gguf: 100%" in last
    assert "31.5M/31.5M" in last


def test_a_log_of_a_download_has_whole_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        _Log().write("\rAya-8B.gguf: 50% of [DATA\x1b[A\n")
        _Log().write("\n\x1b[A")
    assert caplog.messages == ["downloading Aya-8B.gguf: 50% of [DATA"]


def test_a_cached_model_is_not_downloaded_again(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "Model-1B-Q8_0.gguf")
    assert client.target(REPO) == client.target(REPO)
    assert len(hub.downloads) == 1


def test_every_part_of_a_split_model_is_downloaded_and_the_first_is_opened(client, hub) -> None:
    parts = [f"Q4_K_M/big-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    hub.add(REPO, *reversed(parts), "big-Q8_0.gguf")
    path = client.target(f"{REPO}:q4_k_m")
    assert path.name == "big-Q4_K_M-00001-of-00003.gguf"
    assert sorted(hub.downloads) == parts
    assert all((path.parent / Path(part).name).is_file() for part in parts)


def test_a_missing_part_is_refused_before_anything_is_downloaded(client: Client, hub: FakeHub):
    hub.add(REPO, "big-00001-of-00002.gguf")
    with pytest.raises(ModelError, match=r"big-00002-of-00002\.gguf is missing"):
        client.target(REPO)
    assert hub.downloads == []


def test_a_named_file_is_taken_as_it_is(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "a-Q4_K_M.gguf", "mtp-a-Q8_0.gguf")
    assert client.target(REPO, hf_file="mtp-a-Q8_0.gguf").name == "mtp-a-Q8_0.gguf"


def test_target_and_draft_come_from_their_own_repositories(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "a-Q8_0.gguf")
    hub.add("someone/tiny", "b-Q8_0.gguf", "b-Q4_0.gguf")
    paths = client.find(REPO, draft_hf_repo="someone/tiny:Q4_0")
    assert paths.draft is not None
    assert (paths.target.name, paths.draft.name) == ("a-Q8_0.gguf", "b-Q4_0.gguf")


@pytest.mark.parametrize(
    ("files", "reference", "name"),
    [
        (("a-Q8_0.gguf", "eagle3-a-Q8_0.gguf"), "someone/drafts", "eagle3-a-Q8_0.gguf"),
        (("eagle3-a.gguf", "dspark-a.gguf", "dflash-a.gguf"), "someone/drafts", "dspark-a.gguf"),
        (("dflash-a-BF16.gguf", "dflash-a-Q8_0.gguf"), "someone/drafts:q8_0", "dflash-a-Q8_0.gguf"),
        (("mtp-a-Q8_0.gguf", "eagle3-a.gguf"), "someone/drafts:Q4_0", "mtp-a-Q8_0.gguf"),
    ],
)
def test_a_draft_repository_gives_what_drafts_before_whole_models(
    client: Client, hub: FakeHub, files: tuple[str, ...], reference: str, name: str
) -> None:
    hub.add(REPO, "a-Q8_0.gguf")
    hub.add("someone/drafts", *files)
    draft = client.find(REPO, draft_hf_repo=reference).draft
    assert draft is not None
    assert draft.name == name
    assert client.find(REPO, draft_hf_repo=reference, offline=True).draft == draft


def test_a_named_draft_model_comes_before_what_stands_beside_the_target(client, hub, tmp_path):
    hub.add(REPO, "a-Q8_0.gguf", "mtp-a-Q8_0.gguf")
    hub.add("someone/tiny", "b-Q8_0.gguf")
    file = tmp_path / "mine.gguf"
    file.touch()
    assert client.find(REPO, draft_model=str(file)).draft == file
    client.find(REPO, draft_hf_repo="someone/tiny")
    assert hub.downloads == ["a-Q8_0.gguf", "b-Q8_0.gguf"]


def test_a_draft_repository_gives_the_kind_that_was_asked_for(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "a-Q8_0.gguf")
    hub.add("someone/drafts", "mtp-a.gguf", "eagle3-a.gguf", "b-Q8_0.gguf")
    for types, name in (("eagle3", "eagle3-a.gguf"), ("suffix", "b-Q8_0.gguf")):
        draft = client.find(REPO, draft_hf_repo="someone/drafts", spec_type=types).draft
        assert draft is not None
        assert draft.name == name


def test_offline_uses_the_cache_and_asks_nobody(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "a-Q4_K_M.gguf", "a-Q8_0.gguf")
    online = client.target(f"{REPO}:Q8_0")
    client.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
    assert client.target(REPO, offline=True) == online
    with pytest.raises(
        ModelError, match=r"\(cached\) holds no model of quant Q4_K_M; its GGUF models: a-Q8_0.gguf"
    ):
        client.target(f"{REPO}:Q4_K_M", offline=True)


def test_offline_without_a_cached_copy_says_how_to_get_one(client: Client) -> None:
    with pytest.raises(ModelError, match="start once without --offline"):
        client.target(REPO, offline=True)


def test_the_environment_can_forbid_the_network(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "a-Q8_0.gguf")
    client.environment["HF_HUB_OFFLINE"] = "1"
    with pytest.raises(ModelError, match="is not in the cache"):
        client.target(REPO)


def test_a_hub_in_trouble_does_not_keep_a_cached_model_from_starting(client: Client, hub: FakeHub):
    hub.add(REPO, "a-Q8_0.gguf")
    path = client.target(REPO)
    hub.failing_status = 418
    assert client.target(REPO) == path
    for reference in ("someone/else", f"{REPO}:Q4_K_M"):
        with pytest.raises(ModelError, match="answered 418"):
            client.target(reference)


def test_an_unreachable_hub_is_named(client: Client) -> None:
    client.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
    with pytest.raises(ModelError, match=r"cannot reach the hub http://127\.0\.0\.1:1"):
        client.target(REPO)


def test_a_private_repository_opens_with_the_token_and_hides_it_in_errors(client, hub) -> None:
    hub.add(REPO, "a-Q8_0.gguf")
    hub.needs_token[REPO] = "hf_right"
    with pytest.raises(
        ModelError, match=r"there is no repository someone/Model-1B-GGUF .* HF_TOKEN"
    ):
        client.target(REPO)
    with pytest.raises(ModelError) as refusal:
        client.target(REPO, hf_token="hf_wrong")
    assert "hf_wrong" not in str(refusal.value)
    client.environment["HF_TOKEN"] = "hf_right"
    assert client.target(REPO).name == "a-Q8_0.gguf"
    assert client.target(REPO, hf_token="hf_right").name == "a-Q8_0.gguf"


def test_a_gated_repository_says_where_to_accept_the_licence(client: Client, hub: FakeHub) -> None:
    hub.add(REPO, "a-Q8_0.gguf")
    hub.gated.add(REPO)
    with pytest.raises(ModelError, match=f"accept its licence at {hub.endpoint}/{REPO}"):
        client.target(REPO)


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        (
            f"{REPO}:Q2_K",
            {},
            "holds no model of quant Q2_K; its GGUF models: a-Q4_K_M.gguf, a-Q8_0.gguf",
        ),
        (
            REPO,
            {"hf_file": "b.gguf"},
            "holds no file b.gguf; its GGUF models: a-Q4_K_M.gguf, a-Q8_0.gguf",
        ),
        ("someone/empty", {}, "holds no model; its GGUF models: none"),
        ("someone/preset", {}, "is a preset"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(client, hub, reference, options, message):
    hub.add(REPO, "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a.gguf")
    hub.add("someone/empty", "README.md", "mmproj-a.gguf")
    hub.add("someone/preset", "preset.ini", "a-Q8_0.gguf")
    with pytest.raises(ModelError, match=message):
        client.target(reference, **options)


@pytest.mark.parametrize(
    "reference", ["model", "a/b/c", "a/b:", "/b", "a/b:c:d", "a b/c", "../x/y"]
)
def test_a_malformed_reference_is_refused(client: Client, reference: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form"):
        client.target(reference)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "x.gguf", "hf_repo": "a/b"}, "name two models"),
        ({"draft_model": "x.gguf", "draft_hf_repo": "a/b"}, "name two models"),
        ({"hf_file": "x.gguf"}, "needs --hf-repo"),
    ],
)
def test_options_that_exclude_each_other_are_refused(client: Client, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        client.find(**options)


def test_local_files_need_no_hub(client: Client, hub: FakeHub, tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.touch()
    paths = client.find(model=str(file), draft_model=str(file))
    assert (paths.target, paths.draft) == (file, file)
    assert client.find().is_demo
    with pytest.raises(ModelError, match=r"--draft-model .*none.gguf: there is no such file"):
        client.find(draft_model=str(tmp_path / "none.gguf"))


@pytest.mark.parametrize(
    ("paths", "quant", "chosen"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf"], "", "m-Q4_K_M.gguf"),
        (["m-F16.gguf", "m-Q8_0.gguf"], "", "m-Q8_0.gguf"),
        (["README.md", "m-IQ2_XS.gguf", "m-F16.gguf"], "", "m-IQ2_XS.gguf"),
        (["m-Q4_K_M.gguf", "m-Q5_K_M.gguf"], "q5_k_m", "m-Q5_K_M.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (["m.q4_0.gguf"], "Q4_0", "m.q4_0.gguf"),
        (["m-Q4_K_M.gguf", "m-Q4_K.gguf"], "Q4_K", "m-Q4_K.gguf"),
        (["m-Q4_K_M.gguf"], "Q4_K", None),
        (["m-Q4_K_M.gguf"], "Q8_0", None),
        (["mmproj-m-Q4_K_M.gguf", "mtp-Q4_K_M.gguf", "imatrix-Q4_K_M.gguf"], "", None),
        (
            ["eagle3-Q4_K_M.gguf", "dflash-Q4_K_M.gguf", "dspark-Q4_K_M.gguf", "z.gguf"],
            "",
            "z.gguf",
        ),
        (["mmproj-folder/m-Q4_K_M.gguf"], "", "mmproj-folder/m-Q4_K_M.gguf"),
        (
            ["m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"],
            "",
            "m-Q4_K_M-00001-of-00002.gguf",
        ),
        (
            ["m-BF16/m-BF16-00001-of-00002.gguf", "m-Q8_0.gguf"],
            "bf16",
            "m-BF16/m-BF16-00001-of-00002.gguf",
        ),
        (["m-Q4_K_M.gguf.part", "m-Q4_K_M.bin"], "", None),
        (["m-Q4xK.gguf"], "Q4.K", None),
        ([], "", None),
    ],
)
def test_a_file_is_chosen_as_llama_cpp_chooses(paths, quant, chosen) -> None:
    assert choose_file(paths, quant) == chosen


@pytest.mark.parametrize(
    ("drafters", "quant", "model", "chosen"),
    [
        (["mtp-m.gguf"], "", "m-Q8_0.gguf", "mtp-m.gguf"),
        (["eagle3-m.gguf"], "", "m-Q8_0.gguf", None),
        # in the model's folder or above it, the nearest first
        (["mtp-m.gguf", "Q8/mtp-m.gguf", "Q4/mtp-m.gguf"], "", "Q8/m-Q8_0.gguf", "Q8/mtp-m.gguf"),
        (["mtp-m.gguf", "Q4/mtp-m.gguf"], "", "Q8/m-Q8_0-00001-of-00002.gguf", "mtp-m.gguf"),
        (["Q8/mtp-m.gguf"], "", "m-Q8_0.gguf", None),
        # then the quant that was asked for
        (["mtp-m-Q4_0.gguf", "mtp-m-Q4_K_M.gguf"], "q4_k_m", "m-Q4_K_M.gguf", "mtp-m-Q4_K_M.gguf"),
        # then about as many bits as were asked for, or as the model has
        (["mtp-m-BF16.gguf", "mtp-m-Q8_0.gguf"], "Q4_K_M", "m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf"),
        (["mtp-m-Q4_0.gguf", "mtp-m-BF16.gguf"], "", "m-F16.gguf", "mtp-m-BF16.gguf"),
        (["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"], "", "m-Q6_K.gguf", "mtp-m-Q4_0.gguf"),
        (["mtp-m.Q8_0.gguf.part", "mtp-m.bin"], "", "m-Q8_0.gguf", None),
        (["mtp-folder/a-Q8_0.gguf"], "", "mtp-folder/m-Q8_0.gguf", None),
    ],
)
def test_what_drafts_for_a_model_is_chosen_as_llama_server_chooses(drafters, quant, model, chosen):
    assert choose_drafter([model, *drafters], ["mtp"], quant, model) == chosen


def test_a_reference_is_a_repository_and_perhaps_a_quant() -> None:
    assert parse_reference("ggml-org/gemma-3.1b_it-GGUF:Q8_0") == (
        "ggml-org/gemma-3.1b_it-GGUF",
        "Q8_0",
    )
    assert parse_reference("a/b") == ("a/b", "")


def test_the_cache_folder_follows_llama_cpps_order() -> None:
    below = {
        "LLAMA_CACHE": ("/1", "/1"),
        "HF_HUB_CACHE": ("/2", "/2"),
        "HUGGINGFACE_HUB_CACHE": ("/3", "/3"),
        "HF_HOME": ("/4", "/4/hub"),
        "XDG_CACHE_HOME": ("/5", "/5/huggingface/hub"),
    }
    environment = {name: value for name, (value, _) in below.items()}
    for name, (_, expected) in below.items():
        assert hub_cache(environment) == Path(expected)
        environment[name] = ""  # set but empty counts as absent
    assert hub_cache(environment) == Path.home() / ".cache/huggingface/hub"


def test_a_token_never_shows_in_repr() -> None:
    hub = Hub(ModelConfig(hf_token="hf_secret"), {})
    assert hub.token == "hf_secret"
    assert "hf_secret" not in repr(hub)

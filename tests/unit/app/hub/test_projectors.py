"""The projector of a model from the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.drafters import eagle3
from tests.unit.app.hub.fake_hub import Client, FakeHub

from headstart.app import demo
from headstart.app.hub_files import choose_drafter
from headstart.app.model_files import Models, choose_speculators
from headstart.config import Config, ImageConfig, SpeculationConfig
from headstart.types.errors import ConfigError

REPO = "someone/Model-4B-GGUF"


@pytest.mark.parametrize(
    ("projectors", "model", "chosen"),
    [
        ((), "m-Q4_K_M.gguf", None),
        (("mmproj.gguf",), "m-Q4_K_M.gguf", "mmproj.gguf"),
        (("m.mmproj.Q8_0.gguf",), "m-Q4_K_M.gguf", "m.mmproj.Q8_0.gguf"),
        (("m-mmproj-f16.gguf", "mmproj.bin"), "m-Q4_K_M.gguf", "m-mmproj-f16.gguf"),
        # about as many bits as the model has, of equals the first
        (("mmproj-F16.gguf", "mmproj-F32.gguf"), "m-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (("mmproj-BF16.gguf", "mmproj-F16.gguf"), "m-Q4_K_M.gguf", "mmproj-BF16.gguf"),
        (("mmproj-F16.gguf", "mmproj-Q8_0.gguf"), "m-Q4_K_M.gguf", "mmproj-Q8_0.gguf"),
        (("mmproj-F16.gguf", "mmproj-Q8_0.gguf"), "m-F16.gguf", "mmproj-F16.gguf"),
        (("mmproj-Q4_0.gguf", "mmproj-Q4_K_M.gguf"), "m-Q4_K_M.gguf", "mmproj-Q4_0.gguf"),
        # in the model's folder or above it, the nearest first
        (("mmproj-F16.gguf", "a/mmproj-F16.gguf"), "a/m-Q4_K_M.gguf", "a/mmproj-F16.gguf"),
        (("mmproj-F16.gguf", "b/mmproj-F16.gguf"), "a/m-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (("b/mmproj-F16.gguf",), "a/m-Q4_K_M.gguf", None),
    ],
)
def test_a_model_gets_the_projector_that_llama_server_would_give_it(
    client: Client, hub: FakeHub, projectors: tuple[str, ...], model: str, chosen: str | None
) -> None:
    hub.add(REPO, model, *projectors)
    quant = model.partition("-")[2].removesuffix(".gguf")
    assert choose_drafter([model, *projectors], ("mmproj",), "", model) == chosen
    for reference in (REPO, f"{REPO}:{quant}"):
        found = client.find(reference, spec_type="suffix")
        wanted = found.target.parents[model.count("/")] / chosen if chosen else None
        assert found.projector == wanted
    assert client.find(REPO, spec_type="suffix", offline=True).projector == wanted


def test_a_projector_is_not_downloaded_where_another_is_named_or_none_is_wanted(
    client: Client, hub: FakeHub, tmp_path: Path
) -> None:
    hub.add(REPO, "m-Q4_K_M.gguf", "mmproj-F16.gguf")
    (tmp_path / "own.gguf").touch()
    named = ImageConfig(mmproj=str(tmp_path / "own.gguf"))
    for images, projector in (
        (named, tmp_path / "own.gguf"),
        (ImageConfig(mmproj_auto=False), None),
    ):
        assert client.find(REPO, spec_type="suffix", images=images).projector == projector
    assert hub.downloads == ["m-Q4_K_M.gguf"]


def pair_with(hub: FakeHub, draft: str) -> None:
    """A target and a draft model that are real, with projectors that are not."""
    for repo, model, mmproj, file in (
        (REPO, "m-Q4_K_M.gguf", "mmproj-F16.gguf", demo.TARGET),
        ("someone/Small-GGUF", "s-Q4_K_M.gguf", "mmproj-s-F16.gguf", draft),
    ):
        hub.add(repo, model, mmproj)
        hub.repos[repo][model] = demo.path(file).read_bytes()


@pytest.mark.parametrize(
    ("draft", "spec_type"), [(demo.DRAFT, "none"), (demo.DRAFT_OTHER, "draft-model")]
)
def test_a_projector_that_no_draft_model_would_use_is_not_downloaded(
    client: Client, hub: FakeHub, draft: str, spec_type: str
) -> None:
    pair_with(hub, draft)
    found = client.find(REPO, draft_hf_repo="someone/Small-GGUF", spec_type=spec_type)
    assert found.projector is not None
    assert found.draft_projector is None
    assert "mmproj-s-F16.gguf" not in hub.downloads


@pytest.mark.parametrize(
    ("drafter", "spec", "why"),
    [
        ("draft-model", "auto", ""),
        ("draft-model", "off", "no draft model drafts"),
        ("none", "auto", "no draft model drafts"),
        ("eagle3", "auto", "the target's states"),
        ("another vocabulary", "auto", "other tokens"),
    ],
)
def test_a_projector_of_a_draft_model_that_sees_no_images_is_refused_or_takes_no_memory(
    drafter: str, spec: str, why: str, tmp_path: Path
) -> None:
    drafts = {
        "draft-model": demo.path(demo.DRAFT),
        "none": None,
        "eagle3": eagle3(tmp_path / "eagle3.gguf"),
        "another vocabulary": demo.path(demo.DRAFT_OTHER),
    }
    mmproj = tmp_path / "mmproj.gguf"
    models = Models(demo.path(demo.TARGET), drafts[drafter], False, mmproj, mmproj)
    config = Config(speculation=SpeculationConfig(spec=spec))
    assert choose_speculators(config, models).draft_projector == (None if why else mmproj)
    asked = replace(config, images=ImageConfig(draft_mmproj=str(mmproj)))
    if why:
        with pytest.raises(ConfigError, match=f"--draft-mmproj is given but .*{why}.*leave it out"):
            choose_speculators(asked, models)
    else:
        assert choose_speculators(asked, models).draft_projector == mmproj


def test_a_draft_model_sees_images_with_the_projector_of_its_own_repository(
    client: Client, hub: FakeHub, tmp_path: Path
) -> None:
    pair_with(hub, demo.DRAFT)
    (tmp_path / "own.gguf").touch()
    named = ImageConfig(draft_mmproj=str(tmp_path / "own.gguf"))
    for images, name in ((ImageConfig(), "mmproj-s-F16.gguf"), (named, "own.gguf")):
        found = client.find(REPO, draft_hf_repo="someone/Small-GGUF", images=images)
        assert found.draft_projector is not None
        assert found.draft_projector.name == name
    hub.add("someone/Words-GGUF", "w-Q4_K_M.gguf")
    found = client.find("someone/Words-GGUF", draft_hf_repo="someone/Small-GGUF")
    assert (found.projector, found.draft_projector) == (None, None)
    with pytest.raises(ConfigError, match="--draft-mmproj is given but no --mmproj"):
        client.find("someone/Words-GGUF", spec_type="suffix", images=named)

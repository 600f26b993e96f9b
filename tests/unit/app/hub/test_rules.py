"""llama.cpp's rules for choosing a file and a cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.app.hub import Hub, hub_cache
from headstart.app.hub_files import choose_drafter, choose_file, parse_reference
from headstart.config import ModelConfig


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
def test_a_file_is_chosen_as_llama_cpp_chooses(
    paths: list[str], quant: str, chosen: str | None
) -> None:
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
def test_what_drafts_for_a_model_is_chosen_as_llama_server_chooses(
    drafters: list[str], quant: str, model: str, chosen: str | None
) -> None:
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
    hub = Hub.from_config(ModelConfig(hf_token="hf_secret"), {})
    assert hub.token == "hf_secret"
    assert "hf_secret" not in repr(hub)

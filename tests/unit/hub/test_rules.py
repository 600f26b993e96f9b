"""llama.cpp's rules for choosing a file and a cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config import ModelConfig
from headstart.hub import Hub, cache_directory, choose_file, parse_reference


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
        assert cache_directory(environment) == Path(expected)
        environment[name] = ""  # set but empty counts as absent
    assert cache_directory(environment) == Path.home() / ".cache/huggingface/hub"


def test_a_token_never_shows_in_repr() -> None:
    hub = Hub.from_config(ModelConfig(hf_token="hf_secret"), {})
    assert hub.token == "hf_secret"
    assert "hf_secret" not in repr(hub)

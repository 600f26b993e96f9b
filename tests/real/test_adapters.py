"""LoRA adapters and control vectors change what they should, by their scale, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray
from tests.architectures import write_model
from tests.models import TINY, tiny_llama
from tests.real.support import decode, engine_of

from headstart.engine.gguf_header import GgufHeader
from headstart.engine.parameters import Limits
from headstart.types.errors import ConfigError, ModelError

RANK = 2


def write_lora(
    path: Path,
    *,
    seed: int = 1,
    name: str = "blk.0.attn_q.weight",
    sizes: tuple[int, int, int] = (TINY.width, RANK, TINY.width),
) -> Path:
    """Write an adapter for `tiny_llama`, or of another matrix with so many inputs and outputs."""
    width, rank, num_outputs = sizes
    lora = GGUFWriter(path, "llama")
    lora.add_type("adapter")
    lora.add_string("adapter.type", "lora")
    lora.add_float32("adapter.lora.alpha", 2.0)
    shapes = {f"{name}.lora_a": (rank, width), f"{name}.lora_b": (num_outputs, rank)}
    return save(lora, shapes, path, seed=seed)


def save(
    writer: GGUFWriter, tensors: dict[str, tuple[int, ...]], path: Path, *, seed: int = 1
) -> Path:
    random = np.random.default_rng(seed)
    for name, shape in tensors.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    vector = GGUFWriter(folder / "vector.gguf", "controlvector")
    width = TINY.width
    return {
        "model": tiny_llama(folder / "model.gguf"),
        "lora": write_lora(folder / "lora.gguf"),
        "vector": save(vector, {"direction.1": (width,)}, folder / "vector.gguf"),
    }


def logits(path: Path, **settings: str) -> NDArray[np.float32]:
    return decode(engine_of(path, Limits(1, 1, 0), **settings), [1, 2, 3, 4])


@pytest.mark.parametrize(("kind", "flag"), [("lora", "lora"), ("vector", "control_vector")])
def test_its_scale_says_how_much_it_changes(files: dict[str, Path], kind: str, flag: str) -> None:
    path, file = files["model"], files[kind]
    plain, whole = logits(path), logits(path, **{flag: str(file)})
    none, half, same = (logits(path, **{f"{flag}_scaled": f"{file}:{s}"}) for s in (0, 0.5, 1))
    np.testing.assert_allclose(none, plain, atol=1e-4)
    np.testing.assert_array_equal(whole, same)
    assert 0.1 < np.abs(half - plain).max() < np.abs(whole - plain).max()


def test_exact_widths_agree_with_adapters_that_only_requests_use(tmp_path: Path) -> None:
    """Their matrices are of another format than the model's, with kernels of its own."""
    path = write_model(tmp_path / "model.gguf", "llama", is_quantized=True)
    width, num_outputs = GgufHeader(path).shape("output.weight")
    lora = write_lora(tmp_path / "lora.gguf", name="output.weight", sizes=(width, 16, num_outputs))
    engine = engine_of(path, exact=True, lora=str(lora), lora_init_without_apply=True)
    engine.adapters.use((1.0,))
    tokens = list(range(1, 25))
    alone = [decode(engine, [token], at)[0] for at, token in enumerate(tokens)]
    for num_rows in (2, 3, 4, 8, 24):
        engine.clear(0)
        beside = [
            decode(engine, tokens[at : at + num_rows], at, num_rows)
            for at in range(0, len(tokens), num_rows)
        ]
        np.testing.assert_array_equal(np.concatenate(beside), alone)


def test_cells_that_are_not_numbers_spoil_no_prompt_once_they_are_overwritten(
    files: dict[str, Path], tmp_path: Path
) -> None:
    sizes = (TINY.width, RANK, TINY.width // TINY.num_heads * TINY.num_kv_heads)
    lora = write_lora(tmp_path / "lora.gguf", name="blk.0.attn_v.weight", sizes=sizes)
    engine = engine_of(files["model"], lora=str(lora))
    expected = decode(engine, prompt := [3] * 100)
    engine.clear(0)
    engine.adapters.use((1e30,))
    assert np.isnan(decode(engine, [3] * 250)).any()
    engine.adapters.use(())
    engine.clear(0)
    engine.wipe()
    np.testing.assert_array_equal(decode(engine, prompt), expected)


@pytest.mark.parametrize("flag", ["lora", "control_vector"])
@pytest.mark.parametrize("scale", ["-100.5", "nan", "1e39"])
def test_a_scale_that_no_number_of_the_cache_survives_is_refused(
    files: dict[str, Path], flag: str, scale: str
) -> None:
    words = rf"{flag.replace('_', '-')}-scaled has .*:{scale}' but .* from -100 to 100"
    with pytest.raises(ConfigError, match=words):
        logits(files["model"], **{f"{flag}_scaled": f"{files['lora']}:{scale}"})


def test_a_file_of_another_kind_is_named(files: dict[str, Path]) -> None:
    path = files["model"]
    with pytest.raises(ModelError, match=r"vector\.gguf is no adapter for model\.gguf"):
        logits(path, lora=str(files["vector"]))
    with pytest.raises(ModelError, match=r"lora\.gguf is no control vector .* direction\.1 of 64"):
        logits(path, control_vector=str(files["lora"]))

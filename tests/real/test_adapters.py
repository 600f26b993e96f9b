"""LoRA adapters and control vectors change what they should, by their scale, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray
from tests.models import TINY, tiny_llama
from tests.real.support import decode, engine_of

from headstart.engine.parameters import Limits
from headstart.types.errors import ModelError

RANK = 2


def write_lora(path: Path, *, seed: int = 1) -> Path:
    """Write an adapter for `tiny_llama`."""
    lora = GGUFWriter(path, "llama")
    lora.add_type("adapter")
    lora.add_string("adapter.type", "lora")
    lora.add_float32("adapter.lora.alpha", 2.0)
    name, width = "blk.0.attn_q.weight", TINY.width
    shapes = {f"{name}.lora_a": (RANK, width), f"{name}.lora_b": (width, RANK)}
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


def test_a_file_of_another_kind_is_named(files: dict[str, Path]) -> None:
    path = files["model"]
    with pytest.raises(ModelError, match=r"vector\.gguf is no adapter for model\.gguf"):
        logits(path, lora=str(files["vector"]))
    with pytest.raises(ModelError, match=r"lora\.gguf is no control vector .* direction\.1 of 64"):
        logits(path, control_vector=str(files["lora"]))

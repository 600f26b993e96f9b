"""Files of sequences, which libllama reads and writes too, and of slots, over HTTP."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from tests.architectures import tiny_hybrid, tiny_recurrent
from tests.models import tiny_llama
from tests.real.support import decode, engine_of, serving_demo
from tests.server.serving import error_of

from headstart.config import SchedulerConfig, ServerConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.library import api
from headstart.structures import sequence_files
from headstart.structures.sequence_files import SavedSequence
from headstart.types import CacheKind
from headstart.types.errors import RequestError

TEXT = [*range(3, 40)]
WRITERS = [tiny_llama, tiny_hybrid, tiny_recurrent]
VERSION = 1  # of llama-server's list of tokens


@pytest.fixture(scope="module", params=WRITERS, ids=lambda write: write.__name__)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaEngine:
    write: Callable[[Path], Path] = request.param
    return engine_of(write(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture
def engine(loaded: LlamaEngine) -> LlamaEngine:
    """Its sequence 0 holds TEXT, and 1 nothing."""
    for seq_id in range(2):
        loaded.clear(seq_id)
    decode(loaded, TEXT, 0)
    return loaded


def write(engine: LlamaEngine, path: Path, num_exact: int = len(TEXT)) -> int:
    return sequence_files.write(path, TEXT, engine.save_sequence(0), num_exact)


def read(engine: LlamaEngine, seq_id: int, path: Path) -> SavedSequence:
    saved = sequence_files.read(path, engine.context_size, engine.vocab_size)
    if engine.restore_sequence(seq_id, saved.data) != len(saved.tokens):
        raise RequestError("no room" if engine.lacks_cells else "damaged")
    return saved


def save_as_llama_server(engine: LlamaEngine, path: Path, numbers: list[int]) -> None:
    """What its `slots?action=save` calls."""
    array = (ctypes.c_int32 * len(numbers))(*numbers)
    assert api.llama_state_seq_save_file(engine.handle, str(path).encode(), 0, array, len(numbers))


@pytest.mark.parametrize("num_exact", [len(TEXT), 5])
def test_libllama_reads_what_is_written(engine: LlamaEngine, num_exact: int, tmp_path) -> None:
    path = tmp_path / "a.bin"
    assert write(engine, path, num_exact) == path.stat().st_size
    expected = decode(engine, [50], len(TEXT))
    out, count = (ctypes.c_int32 * 256)(), ctypes.c_size_t()
    num_read = api.llama_state_seq_load_file(
        engine.handle, str(path).encode(), 1, out, 256, ctypes.byref(count)
    )
    end = path.stat().st_size - 30  # of the trailer
    assert (num_read, out[: count.value]) == (end, TEXT)
    assert np.array_equal(decode(engine, [50], len(TEXT), seq_id=1), expected)
    saved = read(engine, 1, path)
    assert (saved.tokens, saved.num_exact) == (TEXT, num_exact)
    assert np.array_equal(decode(engine, [50], len(TEXT), seq_id=1), expected)


def test_what_finds_no_cells_is_not_called_damaged(engine: LlamaEngine, tmp_path: Path) -> None:
    write(engine, tmp_path / "a.bin", len(TEXT))
    if engine.cache_kind is CacheKind.CUT:
        decode(engine, [5] * (engine.num_cells - len(TEXT) - 30), len(TEXT))
        with pytest.raises(RequestError, match="no room"):
            read(engine, 1, tmp_path / "a.bin")
    engine.clear(0)
    data = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "b.bin").write_bytes(data[:-8])
    with pytest.raises(RequestError, match="damaged"):
        read(engine, 1, tmp_path / "b.bin")


@pytest.mark.parametrize(
    "numbers", [TEXT, [-1, VERSION, len(TEXT), *TEXT, 0]], ids=["plain", "llama-server"]
)
def test_what_libllama_wrote_is_read(engine: LlamaEngine, numbers: list[int], tmp_path) -> None:
    save_as_llama_server(engine, tmp_path / "a.bin", numbers)
    expected = decode(engine, [50], len(TEXT))
    saved = read(engine, 1, tmp_path / "a.bin")
    size = (tmp_path / "a.bin").stat().st_size
    assert (saved.tokens, saved.num_exact, saved.num_bytes) == (TEXT, len(TEXT), size)
    assert np.array_equal(decode(engine, [50], len(TEXT), seq_id=1), expected)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([-1], "another version"),
        ([-1, 2, 1, 5, 0], "another version"),
        ([-1, VERSION, 1000, 5, 0], "damaged"),
        ([-1, VERSION, -1, 5, 0], "damaged"),
        ([-1, VERSION, 1, 5, 1, 0, 3, 7], "images"),
        ([-1, VERSION, 1, 2**30, 0], "vocabulary"),
        ([-1, VERSION, 300, *[5] * 300, 0], "300 tokens but the context is 256"),
    ],
)
def test_a_list_of_tokens_that_cannot_be_is_refused(engine: LlamaEngine, numbers, says, tmp_path):
    head = struct.pack("<III", sequence_files.MAGIC, sequence_files.VERSION, len(numbers))
    (tmp_path / "a.bin").write_bytes(head + np.array(numbers, "<i4").tobytes())
    with pytest.raises(RequestError, match=says):
        read(engine, 0, tmp_path / "a.bin")


def test_two_sequences_that_begin_alike_share_cells_afterwards(engine: LlamaEngine) -> None:
    if not engine.has_blocks:
        return
    engine.clear(0)
    text = [3 + i % 30 for i in range(100)]
    decode(engine, text, 0)
    expected = decode(engine, [50], len(text))
    assert engine.truncate(0, len(text))
    assert engine.copy_prefix(0, 1, 90)
    assert engine.restore_block(1, engine.save_block(0, 90, 100))
    decode(engine, [5] * (engine.num_cells - len(text) - 20), len(text))
    assert np.allclose(decode(engine, [50], len(text), seq_id=1), expected, atol=0.05)
    engine.clear(0)
    assert engine.truncate(1, len(text))
    assert np.allclose(decode(engine, [50], len(text), seq_id=1), expected, atol=0.05)


def test_a_flipped_bit_anywhere_is_noticed(engine: LlamaEngine, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write(engine, path, len(TEXT))
    data, random = path.read_bytes(), np.random.default_rng(0)
    for at in [*random.integers(0, len(data) - 30, 20).tolist(), len(data) - 20, len(data) - 1]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(RequestError):
            read(engine, 1, path)


PROMPT = (
    "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n" * 3
)
BODY = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "id_slot": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx2.Client]:
    scheduler = SchedulerConfig(parallel=2, cache_ram=0)
    with serving_demo(scheduler, ServerConfig(slot_save_path=str(folder))) as client:
        yield client


def act(client: httpx2.Client, action: str, slot: int = 0, name: str = "a.bin") -> httpx2.Response:
    return client.post(f"/slots/{slot}?action={action}", json={"filename": name})


def test_a_restored_slot_goes_on_where_it_was_saved(client: httpx2.Client, folder: Path) -> None:
    first = client.post("/completion", json=BODY).json()
    saved = act(client, "save").json()
    assert saved["n_saved"] == first["tokens_evaluated"] + first["tokens_predicted"] - 1
    assert saved["n_written"] == (folder / "a.bin").stat().st_size
    assert act(client, "erase").json() == {"id_slot": 0, "n_erased": saved["n_saved"]}
    assert client.get("/slots").json()[0]["n_tokens_in_cache"] in (0, saved["n_saved"])
    restored = act(client, "restore", slot=1).json()
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again = client.post("/completion", json=BODY | {"id_slot": 1}).json()
    assert again["content"] == first["content"]
    assert again["timings"]["prompt_n"] == 1


def test_a_file_that_is_none_is_refused_and_the_server_lives(client: httpx2.Client, folder: Path):
    saved = act(client, "save").json()
    assert saved["n_saved"] >= 0
    client.post("/completion", json=BODY)
    act(client, "save")
    data = (folder / "a.bin").read_bytes()
    damaged = {
        "empty.bin": b"",
        "text.bin": b"no such thing at all",
        "short.bin": data[:100],
        "half.bin": data[: len(data) // 2],
        "ids.bin": data[:12] + b"\xff\xff\xff\x7f" * 3 + data[24:],
    }
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
        answer = act(client, "restore", name=name)
        assert answer.status_code == 400, name
        assert name in answer.json()["error"]["message"]
    assert act(client, "restore", name="absent.bin").status_code == 400
    assert client.post("/completion", json=BODY).status_code == 200


def test_a_file_with_images_is_refused_where_no_request_can_ask_for_them(client, folder) -> None:
    client.post("/completion", json=BODY)
    act(client, "save")
    saved = sequence_files.read(folder / "a.bin", 10**6, 10**6)
    tokens = [-5, *saved.tokens[1:]]
    sequence_files.write(folder / "images.bin", tokens, saved.data, saved.num_exact)
    answer = act(client, "restore", name="images.bin")
    assert "restore media tokens without an mmproj" in error_of(answer, 400)


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "a/b", ".hidden", "", "x" * 300])
def test_a_name_that_leaves_the_folder_is_refused(client: httpx2.Client, name: str) -> None:
    assert act(client, "save", name=name).status_code == 400


def test_wrong_actions_and_slots_are_named(client: httpx2.Client) -> None:
    assert act(client, "drop").status_code == 400
    assert act(client, "erase", slot=9).status_code == 400

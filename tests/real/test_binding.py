"""libllama: how it is found, our part of its header, and what it does with files and symbols."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.architectures import tiny_hybrid
from tests.models import BROKEN_KINDS, broken, tiny_llama
from tests.real.answers import Setting, open_setting
from tests.real.support import decode, engine_of
from tests.rules.source import ROOT

from headstart.app import demo
from headstart.app.assemble import find_models
from headstart.app.hub import hub_cache
from headstart.config import Config, DraftEngineConfig, EngineConfig, ModelConfig
from headstart.engine import binding, devices, find_library, signatures
from headstart.engine.c_batch import floats_at
from headstart.engine.context import LlamaEngine
from headstart.engine.devices import Device
from headstart.engine.find_library import remedy
from headstart.engine.library import api
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch
from headstart.types.errors import ConfigError, EngineError, HeadstartError, ModelError

HEADERS = Path(sysconfig.get_paths()["purelib"]) / "include"
STRUCTS = [binding.type_of(name) for name in binding.STRUCTURES if not name.endswith("_value")]
# but for those that libllama calls
FUNCTIONS = [
    name
    for name in re.findall(r" (\w+)\(", signatures.FUNCTIONS + binding.OF_GGML)
    if not name.endswith(("_callback", "_t"))
]
PROBE = """
#include <cstddef>
#include <cstdio>
#include <string>
#include <type_traits>
#include "llama.h"
#include "mtmd-helper.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"
template <class T> std::string code() {
    if constexpr (std::is_void_v<T>) return "v";
    else if constexpr (std::is_pointer_v<T>) return "p";
    else if constexpr (std::is_class_v<T>) return "s" + std::to_string(sizeof(T));
    else if constexpr (std::is_floating_point_v<T>) return "f" + std::to_string(sizeof(T));
    else if constexpr (std::is_enum_v<T>) return "i" + std::to_string(sizeof(T));
    else if constexpr (std::is_signed_v<T>) return "i" + std::to_string(sizeof(T));
    else return "u" + std::to_string(sizeof(T));
}
template <class R, class... A> void function(const char *name, R (*)(A...)) {
    std::string all = code<R>();
    ((all += " " + code<A>()), ...);
    std::printf("%s %s\\n", name, all.c_str());
}
int main() {
"""


def code(kind: Any) -> str:
    """What the probe prints for a type."""
    if kind is None:
        return "v"
    if issubclass(kind, ctypes.Structure):
        return f"s{ctypes.sizeof(kind)}"
    if kind in (ctypes.c_void_p, ctypes.c_char_p) or not hasattr(kind, "_type_"):
        return "p"
    letters = kind._type_
    if not isinstance(letters, str):
        return "p"
    letter = "f" if letters in "fd" else "u" if letters in "BHILQ?" else "i"
    return f"{letter}{ctypes.sizeof(kind)}"


def test_every_struct_and_function_is_as_in_the_header(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None or not (HEADERS / "llama.h").exists():
        pytest.skip("needs a C++ compiler and the headers that llama-cpp-python installs")
    lines, expected = [], list[str]()
    for one in STRUCTS:
        name = one.__name__
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(one)}")
        for field, *_ in one._fields_:
            if hasattr(one, field) and field != "value":
                lines.append(f'std::printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
                expected.append(f"{name}.{field} {getattr(one, field).offset}")
    for name in FUNCTIONS:
        lines.append(f'function("{name}", {name});')
        expected.append(f"{name} {' '.join(map(code, binding.arguments_of(name)))}")
    source = tmp_path / "probe.cpp"
    source.write_text(PROBE + "\n".join(lines) + "\nreturn 0; }\n")
    program = tmp_path / "probe"
    # nothing is called, so the library need not be there
    flags = ["-std=c++17", "-w", f"-I{HEADERS}", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert len(expected) > 150
    assert printed.splitlines() == expected


def test_the_binding_is_what_its_script_writes() -> None:
    code = "import runpy; print(runpy.run_path('scripts/make_binding.py')['written'](), end='')"
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert Path(signatures.__file__).read_text("utf-8") == made


def test_a_library_named_by_hand_comes_first_and_is_refused_if_it_is_not_there(tmp_path) -> None:
    (tmp_path / "libllama.so").touch()
    named = {"HEADSTART_LIBLLAMA": str(tmp_path), "HEADSTART_CACHE": str(tmp_path / "cache")}
    assert find_library.find(named) == tmp_path / "libllama.so"
    file = named | {"HEADSTART_LIBLLAMA": str(tmp_path / "libllama.so")}
    assert find_library.find(file) == tmp_path / "libllama.so"
    with pytest.raises(ConfigError, match="HEADSTART_LIBLLAMA is"):
        find_library.find(named | {"HEADSTART_LIBLLAMA": str(tmp_path / "other/x.so")})


def test_a_user_without_a_home_needs_no_folder_for_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    found = find_library.find({})
    assert found is not None
    assert found.parent == binding.folder
    assert not hub_cache({}).exists()


def test_an_installed_backend_comes_before_llama_cpp_python(tmp_path: Path) -> None:
    cache = {"HEADSTART_CACHE": str(tmp_path)}
    package = find_library.find(cache)
    assert package is not None
    assert package.parent == binding.folder
    closed = {"HEADSTART_CACHE": str(tmp_path / ("a name too long" * 30))}  # as another user's
    assert find_library.find(closed) == package
    (tmp_path / "libllama").mkdir()
    (tmp_path / "libllama/libllama.so").touch()
    assert find_library.find(cache) == tmp_path / "libllama/libllama.so"


@pytest.mark.parametrize("version", [None, "0.4.1"])
def test_another_version_of_libllama_is_refused(tmp_path: Path, version: str | None) -> None:
    text = f'extern "C" const char *llama_version() {{ return "{version}"; }}' if version else ""
    (tmp_path / "x.cpp").write_text(text)
    library = str(tmp_path / "libllama.so")
    subprocess.run(["c++", "-shared", "-fPIC", str(tmp_path / "x.cpp"), "-o", library], check=True)
    result = subprocess.run(
        [sys.executable, "-m", "headstart", "devices", "--libllama", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    wanted = f"is {version or 'older'}, but this Headstart needs {binding.VERSION} exactly"
    assert wanted in result.stderr


def test_without_any_libllama_one_line_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").touch()  # a package without a library
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "HEADSTART_CACHE": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "headstart", "generate"],
        env=environment, input="", capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 1
    assert re.fullmatch(r"headstart: error: there is no libllama.*\n", result.stderr)
    assert remedy() in result.stderr
    assert result.stdout == ""


MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="reads what is mapped from /proc")
@pytest.mark.parametrize("name", ["libggml.so", "libggml-base.so"])
def test_the_library_asked_for_devices_is_the_one_that_computes(name: str) -> None:
    """A second copy has devices and buffer types of its own, which libllama does not know."""
    api.ggml("libggml"), api.ggml("libggml-base")
    files = {line.split()[-1] for line in MAPS.read_text().splitlines() if "/" + name in line}
    assert len(files) == 1


def test_draft_model_stays_here_unless_a_remote_device_is_named(monkeypatch) -> None:
    """Each of its steps would take a round trip."""
    rows = [
        Device("CPU", "", "CPU", 1, 1, 11),
        Device("GPU0", "", "GPU", 1, 1, 12),
        Device("RPC0", "", "GPU", 1, 1, 13, is_remote=True),
    ]
    monkeypatch.setattr(devices, "list_devices", lambda: rows)
    draft = DraftEngineConfig().applied_to(EngineConfig(rpc="a:1"), 1)
    array = devices.device_array(draft.device, can_be_remote=draft.rpc is not None)
    assert list(array) == [12, None]
    named = DraftEngineConfig(draft_device="RPC0").applied_to(EngineConfig(rpc="a:1"), 1)
    assert list(devices.device_array(named.device, can_be_remote=False)) == [13, None]
    assert devices.device_array(None, can_be_remote=True) is None
    rows.pop()
    assert devices.device_array(None, can_be_remote=False) is None  # as ever without workers


def open_engine(path: Path) -> LlamaEngine:
    return engine_of(path, Limits(2, 64, 4), batch=64, ubatch=16)


def test_a_function_that_libllama_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_lib", object())
    vars(api).pop("llama_set_nextn_layer_offset", None)
    with pytest.raises(ModelError, match="does not export llama_set_nextn_layer_offset"):
        api.llama_set_nextn_layer_offset(None, 0)


def test_layer_inputs_are_the_embeddings_in_the_order_of_the_batch(tmp_path: Path) -> None:
    """What enters layer 0 is the token's embedding, also where there are several micro-batches."""
    engine = open_engine(tiny_llama(tmp_path / "llama.gguf"))
    engine.publish_states([0])
    tokens = {0: [5, 6, 7] * 7, 1: [9, 8] * 3}
    seen: dict[int, np.ndarray] = {}
    for seqs in ((0,), (1, 0)):
        engine.clear(0)
        engine.clear(1)
        batch = Batch(64)
        for seq in seqs:
            batch.add(seq, 0, tokens[seq], 1)
        engine.decode(batch)
        inputs = engine.hidden_states()[0]
        for row, token in enumerate(batch.tokens[: batch.num_rows].tolist()):
            expected = seen.setdefault(token, inputs[row].copy())
            assert (inputs[row] == expected).all()
    assert len(seen) == 5
    assert len({bytes(v.tobytes()) for v in seen.values()}) == 5


def test_states_of_all_rows_and_of_output_rows_agree(tmp_path: Path) -> None:
    engine = open_engine(tiny_hybrid(tmp_path / "hybrid.gguf"))
    rows = []
    for outputs_only in (False, True):
        api.llama_set_embeddings_nextn(engine.handle, True, outputs_only)
        engine.clear(0)
        decode(engine, [3, 1, 4, 1, 5], 0, 2)
        states = api.llama_get_embeddings_nextn(engine.handle)
        rows.append(floats_at(states, 2 if outputs_only else 5, 64).copy())
    assert np.abs(rows[0][3:] - rows[1]).max() < 1e-4


def test_asking_for_states_that_were_not_kept_is_an_error(tmp_path: Path) -> None:
    engine = open_engine(tiny_llama(tmp_path / "llama.gguf"))
    decode(engine, [3, 1, 4])
    with pytest.raises(EngineError, match="kept no such numbers"):
        floats_at(api.llama_get_embeddings_nextn(engine.handle), 3, 64)


@pytest.mark.parametrize("kind", BROKEN_KINDS)
def test_a_broken_gguf_is_a_model_error_that_names_the_file_and_the_reason(kind, tmp_path) -> None:
    path = broken(tmp_path / "bad.gguf", kind)
    with pytest.raises(ModelError, match=r"bad\.gguf") as caught:
        Model(path, EngineConfig(gpu_layers=0))
    assert "gave no reason" not in str(caught.value)
    assert Model(demo.path(demo.DRAFT), EngineConfig(gpu_layers=0)).vocab.size == 4096


def test_a_missing_file_an_empty_one_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "nothing.gguf").touch()
    with pytest.raises(ModelError, match=r"nothing\.gguf is empty; download it again"):
        Model(tmp_path / "nothing.gguf", EngineConfig())
    with pytest.raises(ModelError, match=r"nowhere\.gguf cannot be read: No such file"):
        Model(tmp_path / "nowhere.gguf", EngineConfig())
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        Model(tmp_path, EngineConfig())
    (odd := Path(os.fsdecode(b"%s/a\xff.gguf" % os.fsencode(tmp_path)))).touch()
    with pytest.raises(ModelError, match=r"/a\?\.gguf is not in UTF-8; rename"):
        Model(odd, EngineConfig())


def test_a_missing_draft_file_stops_the_start(tmp_path: Path) -> None:
    config = Config(model=ModelConfig(draft_model=str(tmp_path / "nowhere.gguf")))
    with pytest.raises(HeadstartError, match=r"nowhere\.gguf"):
        open_setting(Setting("draft-model"), find_models(config))

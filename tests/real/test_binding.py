"""Our part of llama.h, compared with the header by a compiler, and how libllama is found."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from tests.rules.source import ROOT

from headstart.app.hub import hub_cache
from headstart.engine import binding, find_library, signatures
from headstart.engine.find_library import remedy
from headstart.types.errors import ConfigError

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


def test_a_library_named_by_hand_comes_first_and_is_refused_if_it_is_not_there(
    tmp_path: Path,
) -> None:
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

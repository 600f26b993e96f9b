"""Building the RPC backend alone, as a plug-in for the installed libggml.

Two C++ files of llama.cpp, against the libggml-base that is installed: seconds, where building
libllama takes many minutes. The source must be of the same release.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from headstart.engine.library import api
from headstart.structures.atomic import cache_folder
from headstart.types.errors import ConfigError


def plugin_folder() -> Path:
    """Where `headstart rpc-build` puts the plug-in."""
    return cache_folder() / "rpc"


def plugin_file(folder: Path) -> Path:
    """Where the plug-in for the installed libggml-base is, or would be; each build has its own."""
    base = Path(api.ggml("libggml-base")._name)
    digest = hashlib.sha256(base.read_bytes()).hexdigest()[:16]
    return folder / f"libggml-rpc-{digest}.so"


def build(source: Path, folder: Path) -> Path:
    """Compile the plug-in from a copy of llama.cpp, or of llama-cpp-python with it.

    Raises:
        ConfigError: no compiler, no source, source of another release, or it does not compile.
    """
    ggml = _ggml_of(source)
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise ConfigError("there is no C++ compiler; install g++ or clang++, or name it in CXX")
    base = Path(api.ggml("libggml-base")._name)
    target = plugin_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    command = [
        *(compiler, "-std=c++17", "-O2", "-fPIC", "-shared"),
        *("-DGGML_BACKEND_DL", "-DGGML_BACKEND_BUILD", "-DGGML_BACKEND_SHARED", "-DGGML_SHARED"),
        *(f"-I{ggml / name}" for name in ("include", "src")),
        *(str(ggml / "src/ggml-rpc" / name) for name in ("ggml-rpc.cpp", "transport.cpp")),
        *(str(base), "-pthread", "-o", str(unfinished)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-10:])
            raise ConfigError(f"the RPC plug-in does not compile with {compiler}:\n{last}")
        unfinished.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the RPC plug-in cannot be built in {folder}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _ggml_of(source: Path) -> Path:
    for part in ("vendor/llama.cpp/ggml", "ggml", "."):
        ggml = source / part
        if (ggml / "src/ggml-rpc/ggml-rpc.cpp").exists():
            break
    else:
        raise ConfigError(
            f"{source} holds no ggml/src/ggml-rpc; name a folder with the source of llama.cpp or "
            "of llama-cpp-python"
        )
    text = (ggml / "CMakeLists.txt").read_text(encoding="utf-8", errors="replace")
    parts = dict(re.findall(r"set\(GGML_VERSION_(MAJOR|MINOR|PATCH) (\d+)\)", text))
    version = ".".join(parts.get(name, "?") for name in ("MAJOR", "MINOR", "PATCH"))
    installed = api.ggml_version().decode()
    if version != installed.split("-")[0]:
        raise ConfigError(
            f"{ggml} is version {version} of ggml but {installed} is installed; take the source of "
            "the installed llama-cpp-python"
        )
    return ggml

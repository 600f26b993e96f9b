"""`headstart rpc-build`: the RPC backend alone, as a plug-in for an installed libggml without it.

Two C++ files of llama.cpp, against the libggml-base that is installed: seconds, where building
libllama takes many minutes. The source must be of the same release.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcBuildOptions:
    """The source to build from."""

    source: str | None = option(
        None, "folder with the source of llama.cpp or llama-cpp-python, of the installed release"
    )


def run(resolved: Resolved) -> int:
    """Build it and print its path; return the exit code."""
    options = resolved.own(RpcBuildOptions)

    from headstart.extras.rpc.backend import plugin_folder

    with tempfile.TemporaryDirectory() as folder:
        source = Path(options.source) if options.source else _fetch(Path(folder))
        print(f"built {build(source, plugin_folder())}")
    return 0


def _fetch(folder: Path) -> Path:
    """The source of the llama-cpp-python that has our libllama, by pip."""
    from headstart.engine.binding import RELEASE

    name = "llama-cpp-python"
    wanted = f"{name}=={RELEASE}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name]
    done = subprocess.run([*command, "-d", str(folder), wanted], capture_output=True, text=True)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ConfigError(
            f"pip could not fetch the source of {wanted}: {last}; name a folder with it: --source"
        )
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def build(source: Path, folder: Path) -> Path:
    """Compile the plug-in from a copy of llama.cpp, or of llama-cpp-python with it.

    Raises:
        ConfigError: no compiler, no source, source of another release, or it does not compile.
    """
    from headstart.engine.library import api
    from headstart.extras.rpc.backend import plugin_file

    ggml = _ggml_of(source, api.ggml_version().decode())
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


def _ggml_of(source: Path, installed: str) -> Path:
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
    if version != installed.split("-")[0]:
        raise ConfigError(
            f"{ggml} is version {version} of ggml but {installed} is installed; take the source of "
            "the installed llama-cpp-python"
        )
    return ggml


COMMAND = Command(
    name="rpc-build",
    about=(
        "Build llama.cpp's RPC backend as a plug-in for the installed libllama, where that was "
        "built without it: some seconds with a C++ compiler. Without --source, pip fetches the "
        "source of the installed llama-cpp-python."
    ),
    options=RpcBuildOptions,
    run=run,
)

"""Finds libllama: named by the user, installed by `headstart backend`, or of llama-cpp-python.

backends.json lists prebuilt ones; scripts/pin_backends.py writes it for a release.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headstart.engine.signatures import RELEASE
from headstart.structures.atomic import cache_folder
from headstart.types.errors import ConfigError, ModelError

VARIABLES = ("HEADSTART_LIBLLAMA", "LLAMA_CPP_LIB_PATH")  # a folder, or the file in it
TABLE = Path(__file__).with_name("backends.json")
# how to compile a backend: CMake's flag, a program that it requires, and the name of that
COMPILED = {
    "cuda": ("-DGGML_CUDA=on", "nvcc", "the CUDA toolkit"),
    "rocm": ("-DGGML_HIP=on", "hipcc", "ROCm"),
    "vulkan": ("-DGGML_VULKAN=on", "glslc", "the Vulkan SDK"),
}


def installed_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder where `headstart backend install` puts libllama."""
    return cache_folder(environment) / "libllama"


def _library_in(folder: Path, name: str = "llama") -> Path | None:
    files = (folder / f"lib{name}.{end}" for end in ("so", "dylib"))
    return next(filter(os.path.isfile, files), None)  # the cache may be another user's, and closed


def find(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Find the library file; None if there is none.

    Raises:
        ConfigError: the one named by the user does not exist.
    """
    for variable in VARIABLES:
        if value := environment.get(variable):
            path = Path(value).expanduser()
            folder = path.parent if path.is_file() else path
            if found := _library_in(folder):
                return found
            flag = "--libllama or " if variable == VARIABLES[0] else ""
            raise ConfigError(f"{flag}{variable} is {value!r}, but there is no libllama in it")
    if found := _library_in(installed_folder(environment)):
        return found
    spec = importlib.util.find_spec("llama_cpp")
    return _library_in(Path(spec.origin).parent / "lib") if spec and spec.origin else None


def this_platform() -> str:
    """The platform's name, for instance linux-x86_64."""
    return f"{sys.platform}-{platform.machine()}"


def prebuilt() -> list[dict[str, Any]]:
    """Builds for this platform: the backend, url, size and sha256 of each archive."""
    rows = json.loads(TABLE.read_text("utf-8"))
    return [row for row in rows if row.pop("platform") == this_platform()]


def find_card(root: Path = Path("/")) -> tuple[str, str] | None:
    """The first graphics card found and libllama's backend for it: NVIDIA's, Apple's, AMD's, then
    any other with Vulkan.
    """
    if name := _nvidia():
        return name, "cuda"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "Apple's GPU", "metal"
    if (root / "dev/kfd").exists():
        return "an AMD card", "rocm"
    has_card = any((root / "dev/dri").glob("renderD*"))
    if has_card and ctypes.util.find_library("vulkan"):
        return "a card with Vulkan", "vulkan"
    return None


def _nvidia() -> str | None:
    """The name of the first card according to nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    # wakes the driver, which takes seconds
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver
        return None
    return done.stdout.partition("\n")[0].strip() or None


def remedy(backend: str = "") -> str:
    """How to get a libllama with this backend, by default that for this machine's card: by download
    if possible.
    """
    names, card = {row["backend"] for row in prebuilt()}, ""
    again = "--force-reinstall --no-deps --no-cache-dir " if backend else ""
    if not backend:
        card, backend = find_card() or ("", "cpu")
        if backend not in names and "cpu" in names:  # works at once
            card, backend = "", "cpu"
    wish = f"for {card} " if card else ""
    if backend in names:
        return f"{wish}run: headstart backend install {backend}"
    flag, program, kit = COMPILED.get(backend, ("", "", ""))
    pip = f"{sys.executable} -m pip install {again}llama-cpp-python=={RELEASE}"
    if flag:
        pip = f"CMAKE_ARGS={flag} {pip}"
    lacks = f", {kit} (there is no {program} in PATH)" if kit and not shutil.which(program) else ""
    return f"{wish}compile it, which needs a C++ compiler{lacks} and some minutes: {pip}"


def load() -> tuple[ctypes.CDLL, Path]:
    """Load libllama; returns it and its folder.

    Raises:
        ConfigError: it is missing or cannot be loaded.
    """
    file = find()
    if file is None:
        raise ConfigError(
            f"there is no libllama, which computes; {remedy()} (or name a build: --libllama)"
        )
    return _open(file), file.parent


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise ConfigError(f"{file} cannot be loaded: {error}") from error


def loaded_with(folder: Path, name: str) -> ctypes.CDLL:
    """The ggml library of this name that the libllama in this folder uses.

    In a wheel, links are copies: libggml.so is a different file from the libggml.so.0 that libllama
    loaded, and a second copy would have its own devices.

    Raises:
        ModelError: it is missing.
    """
    ends = (".so", ".so.*", ".*dylib")
    files = [file for end in ends for file in folder.glob(name + end)]
    for mode in (getattr(os, "RTLD_NOLOAD", 0), 0):
        for file in files:
            with suppress(OSError):
                return ctypes.CDLL(str(file), mode=ctypes.DEFAULT_MODE | mode)
    raise ModelError(f"{name} is not in {folder}, where libllama is; install it again")


def load_beside(folder: Path) -> ctypes.CDLL:
    """Load libmtmd, which reads images, of the same build as the libllama in this folder.

    Raises:
        ConfigError: it is missing or cannot be loaded.
    """
    if file := _library_in(folder, "mtmd"):
        return _open(file)
    raise ConfigError(
        f"--mmproj needs libmtmd, which is not beside libllama in {folder}; install "
        "llama-cpp-python, which brings it, or leave out --mmproj"
    )

"""`headstart rpc-build`: the RPC backend alone, for a libllama that came without it."""

from __future__ import annotations

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


def run(resolved: Resolved, words: list[str]) -> int:
    """Build it and print its path; return the exit code."""
    options = resolved.own(RpcBuildOptions)

    from headstart.extras.rpc.plugin import build, plugin_folder

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

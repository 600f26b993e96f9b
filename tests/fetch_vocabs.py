"""Fetch llama.cpp's test vocabularies out of the source package of llama-cpp-python.

    python tests/fetch_vocabs.py [FOLDER]

The wheel does not hold them. pip prepares the package's metadata on the way, which takes a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"


def default_folder() -> Path:
    """Where the vocabularies are kept if nothing else is said."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headstart" / "vocabularies"


def fetch(folder: Path) -> int:
    """Write the vocabularies to `folder`; return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--dest", temporary, PACKAGE], check=True)
        with tarfile.open(next(Path(temporary).glob("*.tar.gz"))) as archive:
            return sum(_extract(archive, member, folder) for member in archive)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> bool:
    name = Path(member.name).name
    file = (
        archive.extractfile(member)
        if name.startswith("ggml-vocab-") and name.endswith(".gguf")
        else None
    )
    if file is None:
        return False
    (folder / name).write_bytes(file.read())
    return True


if __name__ == "__main__":
    destination = Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()
    print(f"{fetch(destination)} vocabularies in {destination}")

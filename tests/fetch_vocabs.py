"""Fetch llama.cpp's test vocabularies out of the source package of llama-cpp-python.

    python tests/fetch_vocabs.py [FOLDER] [--sdist FILE] [--if-missing]

The wheel does not hold them. pip prepares the package's metadata on the way, which takes up to a
minute; `make test` does so once, and runs without them (some tests are skipped) where the package
cannot be had.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
NAMES = (
    "qwen2",
    "llama-bpe",
    "llama-spm",
    "gemma-4",
    "gpt-2",
    "phi-3",
    "deepseek-llm",
    "deepseek-coder",
)  # those that tests use


def folder_of_vocabularies() -> Path:
    """Where the vocabularies are kept: HEADSTART_VOCABS, else a folder of the user's cache."""
    if named := os.environ.get("HEADSTART_VOCABS"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headstart" / "vocabularies"


def vocabulary_file(folder: Path, name: str) -> Path:
    """The file of one vocabulary."""
    return folder / f"ggml-vocab-{name}.gguf"


def has_all(folder: Path) -> bool:
    """Whether all vocabularies that tests use are there."""
    return all(vocabulary_file(folder, name).exists() for name in NAMES)


def download(folder: Path) -> Path:
    """Let pip bring the source package; return its file.

    Raises:
        OSError, CalledProcessError: pip cannot.
    """
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    once = ["--retries", "0", "--timeout", "30"]  # it is not worth waiting for
    subprocess.run([*pip, *once, "--dest", str(folder), PACKAGE], check=True, timeout=600)
    return next(folder.glob("*.tar.gz"))


def extract(sdist: Path, folder: Path) -> int:
    """Write the vocabularies to `folder`; return how many.

    Raises:
        OSError, TarError: the package cannot be read, or the folder not written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(sdist) as archive:
        return sum(_extract(archive, member, folder) for member in archive)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> bool:
    name = Path(member.name).name
    is_vocabulary = name.startswith("ggml-vocab-") and name.endswith(".gguf")
    file = archive.extractfile(member) if is_vocabulary else None
    if file is None:
        return False
    partial = folder / f"{name}.part"  # so that an interruption leaves no half of a file
    partial.write_bytes(file.read())
    partial.replace(folder / name)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch them; with --if-missing a failure is only told."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=folder_of_vocabularies())
    parser.add_argument("--sdist", type=Path, help="the source package, if it is there already")
    parser.add_argument(
        "--if-missing", action="store_true", help="do nothing if they are there; never fail"
    )
    options = parser.parse_args(argv)
    if options.if_missing and has_all(options.folder):
        return 0
    print(f"Fetching test vocabularies from the source package of {PACKAGE}", flush=True)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            count = extract(options.sdist or download(Path(temporary)), options.folder)
    except (OSError, subprocess.SubprocessError, tarfile.TarError, StopIteration) as error:
        print(f"not fetched, the tests that need them are skipped: {error}")
        return 0 if options.if_missing else 1
    print(f"{count} vocabularies in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

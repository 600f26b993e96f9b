"""`headstart backend`: which libllama is used, and downloading one.

An archive is a zip file, as wheels are; its shared libraries end up in one folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.engine.find_library import (
    find,
    find_card,
    installed_folder,
    prebuilt,
    remedy,
    this_platform,
)
from headstart.types.errors import ConfigError, ModelError

NAMES = ("cpu", "cuda", "vulkan", "metal", "rocm")


def archives(backend: str) -> list[dict[str, Any]]:
    """The rows of a backend's archives in the table, for this platform.

    Raises:
        ConfigError: there is nothing prebuilt.
    """
    here = prebuilt()
    found = [row for row in here if row["backend"] == backend]
    if not found:
        others = ", ".join(sorted({row["backend"] for row in here})) or "none"
        raise ConfigError(
            f"this copy of Headstart has no prebuilt {backend} libllama for {this_platform()} "
            f"(there are: {others}); {remedy(backend)}"
        )
    return found


def install(backend: str, folder: Path) -> None:
    """Download, check and unpack a backend; finally replaces `folder` atomically.

    Raises:
        ConfigError: there is none, or the files cannot be written.
        ModelError: a download failed; the next try resumes it.
    """
    wanted = archives(backend)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            unpacked = Path(made) / "new"
            unpacked.mkdir()
            for archive in wanted:
                _unpack(_download(archive, folder.parent), unpacked)
            if folder.exists():
                folder.rename(Path(made) / "old")
            unpacked.rename(folder)
            for archive in wanted:
                _part(archive, folder.parent).unlink()
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{backend} cannot be installed in {folder}: {error}") from error


def _part(archive: Mapping[str, Any], folder: Path) -> Path:
    return folder / f"{archive['sha256']}.part"


def _download(archive: Mapping[str, Any], folder: Path) -> Path:
    """Download an archive, or what is missing of it; returns the file."""
    import httpx2
    from huggingface_hub import errors
    from huggingface_hub.file_download import http_get

    url, size, file = archive["url"], archive["size"], _part(archive, folder)
    name = PurePosixPath(url).name
    print(f"downloading {name}, {size / 2**20:.0f} MiB", flush=True)
    with file.open("ab") as part:
        have = part.tell()
        try:
            if have < size:
                http_get(url, part, resume_size=have, expected_size=size, displayed_filename=name)
        except (httpx2.HTTPError, errors.HfHubHTTPError, OSError) as error:
            raise ModelError(
                f"{url} cannot be downloaded: {error}; try again, it goes on from there"
            ) from error
    with file.open("rb") as part:
        digest = hashlib.file_digest(part, "sha256").hexdigest()
    if digest != archive["sha256"]:
        file.unlink()
        raise ModelError(
            f"{url} has the SHA-256 {digest} but must have {archive['sha256']}; nothing was "
            "installed"
        )
    return file


def _unpack(file: Path, folder: Path) -> None:
    """Write the shared libraries of a zip file, whatever folders they are in."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).name
            if name.endswith((".so", ".dylib")) or ".so." in name:
                with archive.open(member) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                os.chmod(folder / name, 0o755)


def run(resolved: Resolved) -> int:
    """Show the libllama in use, or install one; return the exit code."""
    words = resolved.words
    if not words:
        print(find(os.environ) or f"there is no libllama; {remedy()}")
        return 0
    card, found = find_card() or ("", "cpu")
    backend = words[1] if len(words) > 1 else found
    if words[0] != "install" or len(words) > 2 or backend not in NAMES:
        raise ConfigError(f"headstart backend install takes one of {', '.join(NAMES)}")
    folder = installed_folder(os.environ)
    print(f"installing {backend}" + (f" for {card}" if card else ""), flush=True)
    install(backend, folder)
    print(f"installed {folder}")
    return 0


COMMAND = Command(
    name="backend",
    about=(
        "Show which libllama is used. With install, download a prebuilt one for this machine: for "
        "the card that is found, or for the backend that is named."
    ),
    run=run,
    usage="[install [cpu|cuda|vulkan|metal|rocm]]",
)

"""Where a tenant's slot files are, and how many of them there may be."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.requests import Request as HttpRequest

from headstart.config import ServerConfig
from headstart.server.errors import ApiError
from headstart.server.model import service_of
from headstart.types.errors import EngineError, QuotaError, RequestError

_NAME = re.compile(r"[\w. +@-]{1,200}")


def slot_folder(http: HttpRequest) -> Path:
    """The folder of the tenant that sent the request: --slot-save-path if there is only one.

    Raises:
        ApiError: there is no --slot-save-path.
    """
    folder = service_of(http).config.slot_save_path
    if folder is None:
        raise ApiError(501, "slot actions need a folder; start with --slot-save-path FOLDER")
    has_tenants = http.scope["headstart.has_tenants"]
    return Path(folder, http.scope["headstart.namespace"] if has_tenants else "")


def check_name(name: str | None) -> str:
    """Check that the name stays inside of the folder."""
    if name is None or not _NAME.fullmatch(name) or name.startswith("."):
        raise RequestError(
            f"filename is {name!r} but must be letters, digits, spaces and . _ + @ - alone"
        )
    return name


def make_room(folder: Path, name: str, config: ServerConfig) -> None:
    """Make the folder of a tenant, and check that the tenant may save a file of this name.

    Raises:
        QuotaError: too many, or too large.
        EngineError: the folder cannot be made or read.
    """
    try:
        if folder != Path(config.slot_save_path or ""):
            folder.mkdir(mode=0o700, exist_ok=True)
        others = [one for one in folder.glob("*") if one.name != name and one.is_file()]
        num_bytes = sum(one.stat().st_size for one in others)
    except OSError as error:
        raise EngineError(f"the folder for slot files cannot be used: {error}") from error
    if len(others) >= config.tenant_slot_files and not (folder / name).exists():
        raise QuotaError(
            "slot files",
            f"you have {len(others)} slot files and may have {config.tenant_slot_files}; save "
            "under one of their names, or start with a larger --tenant-slot-files",
            retry_after=0,
        )
    if num_bytes >= config.tenant_slot_files_mb * 2**20:
        raise QuotaError(
            "slot files",
            f"your other slot files take {num_bytes >> 20} MiB and may take "
            f"{config.tenant_slot_files_mb}; save over a larger one, or start with a larger "
            "--tenant-slot-files-mb",
            retry_after=0,
        )

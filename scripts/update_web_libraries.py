"""Fetch the page's libraries: `python scripts/update_web_libraries.py [NAME=VERSION ...]`.

They are named in src/headstart/web/vendor/libraries.json, with version, licence and the SHA-256 of
every file. Without arguments the pinned versions are fetched and must have the same hashes; with
NAME=VERSION that library is moved to another version and its hashes are written anew. Needs npm.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src" / "headstart" / "web" / "vendor"
LIST = FOLDER / "libraries.json"


def main(arguments: list[str]) -> int:
    """Fetch all of them; return the exit code."""
    libraries: list[dict[str, Any]] = json.loads(LIST.read_text("utf-8"))
    wanted = dict(argument.split("=", 1) for argument in arguments)
    if unknown := set(wanted) - {library["name"] for library in libraries}:
        print(f"{LIST.name} has no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 1
    for library in libraries:
        version = wanted.get(library["name"], library["version"])
        is_pinned = version == library["version"]
        contents = _fetch(library["name"], version, [file["from"] for file in library["files"]])
        for file in library["files"]:
            data = contents[file["from"]]
            digest = hashlib.sha256(data).hexdigest()
            if is_pinned and file.get("sha256") not in (None, digest):
                print(f"{file['to']} has another hash than the list says", file=sys.stderr)
                return 1
            (FOLDER / file["to"]).write_bytes(data)
            file["sha256"] = digest
        library["version"] = version
        print(f"{library['name']} {version}")
    LIST.write_text(json.dumps(libraries, indent=2) + "\n", "utf-8")
    return 0


def _fetch(name: str, version: str, paths: list[str]) -> dict[str, bytes]:
    """Files of one npm package by their path in it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        archive = next(Path(folder).glob("*.tgz"))
        with tarfile.open(archive) as packed:
            contents = {}
            for path in paths:
                member = packed.extractfile(f"package/{path}")
                assert member is not None, path
                contents[path] = member.read()
            return contents


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

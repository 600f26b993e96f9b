"""Writes src/headstart/engine/backends.json: the prebuilt libllama of this release, with SHA-256.

    python scripts/pin_backends.py [--index https://abetlen.github.io/llama-cpp-python/whl]

Downloads every wheel of the pinned llama-cpp-python that the index has for our platforms, and the
CUDA libraries that CUDA wheels need from PyPI; a release runs it before the package is built. The
release's own CUDA wheel, in the folder --built, is taken instead of the index's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).parents[1]
INDEX = "https://abetlen.github.io/llama-cpp-python/whl"
# our name, that of the index, and packages that a machine with only a driver lacks
BACKENDS = (
    ("cpu", "cpu", ()),
    ("cuda", "cu125", ("nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12")),
    ("vulkan", "vulkan", ()),
    ("metal", "metal", ()),
    ("rocm", "rocm72", ()),
)
PLATFORMS = {
    "linux-x86_64": r"(?:many)?linux[\w.]*_x86_64",
    "linux-aarch64": r"(?:many)?linux[\w.]*_aarch64",
    "darwin-arm64": r"macosx_\d+_\d+_arm64",
}


def links(page: str) -> list[str]:
    """The addresses of a package's page in an index."""
    text = urllib.request.urlopen(page).read().decode()
    return [urljoin(page, link).partition("#")[0] for link in re.findall(r'href="([^"]+)"', text)]


def newest_first(link: str) -> list[int]:
    """Order of versions."""
    return [-int(number) for number in re.findall(r"\d+", link.rsplit("/", 1)[-1])]


def row(backend: str, platform: str, url: str, file: Path | None) -> dict[str, object]:
    """One line of the table; downloads the file unless it was built here."""
    data = file.read_bytes() if file else urllib.request.urlopen(url).read()
    return {
        "backend": backend,
        "platform": platform,
        "url": url,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def table(
    index: str, packages: str, version: str, built: Path, address: str
) -> list[dict[str, object]]:
    """All rows; `address` is where the release has the files in `built`."""
    rows = []
    own = {f"{address}/{file.name}": file for file in built.glob("*.whl")}
    for backend, folder, needed in BACKENDS:
        pages = [f"{index}/{folder}/llama-cpp-python/", *(f"{packages}/{one}/" for one in needed)]
        names = [rf"/llama_cpp_python-{re.escape(version)}-", *("/" for _ in needed)]
        for platform, tag in PLATFORMS.items():
            found = []
            for page, name in zip(pages, names, strict=True):
                wanted = re.compile(rf"{name}[^/]*-{tag}\.whl$")
                fitting = sorted(filter(wanted.search, links(page)), key=newest_first)
                if backend == "cuda":
                    fitting = [*filter(wanted.search, own), *fitting]
                found += fitting[:1]
            if len(found) == len(pages):
                rows += [row(backend, platform, url, own.get(url)) for url in found]
    if not rows:
        raise SystemExit(
            f"{index} has no llama-cpp-python {version}: a release needs some libllama"
        )
    return rows


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Pin the prebuilt libllama of a release.")
    parser.add_argument("--index", default=INDEX)
    parser.add_argument(
        "--packages", default="https://pypi.org/simple", help="for CUDA's libraries"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "src/headstart/engine/backends.json")
    parser.add_argument("--built", type=Path, default=ROOT / "built", help="our own CUDA wheel")
    parser.add_argument("--address", default="", help="where the release will have it")
    options = parser.parse_args()
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    version = re.search(r"(?mi)^llama.cpp.python==(\S+)", pins)
    assert version is not None
    rows = table(options.index, options.packages, version[1], options.built, options.address)
    options.output.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    print(f"{len(rows)} archives")


if __name__ == "__main__":
    main()

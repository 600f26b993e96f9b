"""Files of prompts: tokens of one text, and the caches computed for them.

The name has the tenant, and hashes of the tokens and of all before them (`StoredFile`). The file is
a ZIP archive, uncompressed, of the tokens (int32) and of the caches by model. Its checksums ensure
that damaged files are never used.
"""

from __future__ import annotations

import hashlib
import os
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from headstart.structures.atomic import replacement
from headstart.structures.checkpoints import Data, pack, unpack
from headstart.structures.tenants import tenant_of
from headstart.types import Bytes

SUFFIX = ".prompt"
_TOKENS = "tokens"  # an entry; no model has this name


def write_prompt(
    path: Path,
    tokens: array[int],
    caches: Mapping[str, Data],
    rest: Callable[[], object] = lambda: None,
) -> None:
    """Write the caches of these tokens, by model, to a file atomically, readable by this user only.

    It is not flushed to the disk: after a power failure damage is detected, and the prompt decoded
    again. `rest` is called after each piece of a megabyte.

    Raises:
        OSError: the file cannot be written.
    """
    entries: dict[str, Sequence[Bytes]] = {_TOKENS: [tokens.tobytes()]}
    entries |= {name: pack(data) for name, data in caches.items()}
    with replacement(path, is_flushed=False) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file, ZipFile(file, "w") as archive:
            for name, parts in entries.items():
                with archive.open(name, "w", force_zip64=True) as entry:
                    for part in parts:
                        view = memoryview(part)
                        for start in range(0, len(view), 1 << 20):
                            entry.write(view[start : start + (1 << 20)])
                            rest()


def read_prompt(path: Path) -> tuple[array[int], dict[str, Data]]:
    """Read a file's tokens, and their caches by model.

    Raises:
        OSError: the file cannot be read.
        Exception: it is damaged or of another kind.
    """
    tokens, caches = array("i"), dict[str, Data]()
    with ZipFile(path) as archive:
        tokens.frombytes(archive.read(_TOKENS))
        for name in archive.namelist():
            if name != _TOKENS:
                data = archive.read(name)
                caches[name] = unpack(data) or data
    return tokens, caches


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile:
    """Tokens of a prompt on the disk."""

    path: Path
    owner: str  # hash of the tenant
    parent: str  # key of the text before them
    num_prompt: int  # tokens of the text that were asked; the rest is the answer
    keys: Mapping[int, str]  # of the text, by the lengths to which its cache can be cut
    num_bytes: int

    @property
    def length(self) -> int:
        return max(self.keys)

    @staticmethod
    def of(path: Path, num_bytes: int) -> StoredFile:
        """Parse a file's name.

        Raises:
            ValueError: it is not such a name.
        """
        owner, parent, num_prompt, *keys = path.stem.split("-")
        lengths = {int(length, 16): key for length, key in (one.split("_") for one in keys)}
        if not lengths:
            raise ValueError("it has no lengths")
        return StoredFile(path, owner, parent, int(num_prompt, 16), lengths, num_bytes)

    @staticmethod
    def name(owner: str, parent: str, num_prompt: int, keys: Mapping[int, str]) -> str:
        ends = "".join(f"-{length:x}_{key}" for length, key in keys.items())
        return f"{owner}-{parent}-{num_prompt:x}{ends}{SUFFIX}"


class PromptIndex:
    """The files of one folder, by contents; thread-safe.

    A file continues another if its parent is that one's whole text.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._lock = threading.Lock()  # around what follows
        self._files: dict[str, StoredFile] = {}  # by name
        # by the key of the text before them and their length, files by their key
        self._below: defaultdict[str, dict[int, dict[str, StoredFile]]] = defaultdict(dict)
        self._ends: Counter[str] = Counter()  # files, by the key of their whole text
        self._num_continued = 0  # number of these keys that other files continue

    def __iter__(self) -> Iterator[StoredFile]:
        with self._lock:
            return iter(list(self._files.values()))

    @property
    def num_texts(self) -> int:
        """Number of whole texts that no file continues."""
        return len(self._ends) - self._num_continued

    def find(self, namespace: str, tokens: array[int]) -> tuple[list[StoredFile], int]:
        """The files of the longest beginning of a text, and its length. O(that length)."""
        chain, length, parent = list[StoredFile](), 0, root_of(namespace)
        while known := self.matches(parent, length, tokens):
            length, (parent, file) = max(known.items())
            chain.append(file)
        return chain, length

    def matches(
        self, parent: str, start: int, tokens: array[int]
    ) -> dict[int, tuple[str, StoredFile]]:
        """By length, the files that continue this text after its first `start` tokens."""
        digest, at, found = digest_of(parent), start, dict[int, tuple[str, StoredFile]]()
        with self._lock:
            for length in sorted(self._below.get(parent, ())):
                if start < length <= len(tokens):
                    digest.update(tokens[at:length])
                    at, key = length, digest.copy().hexdigest()
                    if file := self._below[parent][length].get(key):
                        found[length] = key, file
        return found

    def same_text(self, file: StoredFile) -> StoredFile | None:
        """A stored file with the same tokens, under any name."""
        with self._lock:
            below = self._below.get(file.parent, {}).get(file.length, {})
            return below.get(file.keys[file.length])

    def is_end(self, file: StoredFile) -> bool:
        """Whether no file continues this one."""
        return self._below.keys().isdisjoint(file.keys.values())

    def add(self, file: StoredFile) -> None:
        """Add a file, unless it is known."""
        with self._lock:
            if file.path.stem not in self._files:
                self._files[file.path.stem] = file
                self._count(file, 1)
                for length, key in file.keys.items():
                    self._below[file.parent].setdefault(length, {})[key] = file

    def remove(self, file: StoredFile) -> None:
        """Remove a file, if it is known."""
        with self._lock:
            known = self._files.pop(file.path.stem, None)
            if known is None:
                return
            below = self._below[known.parent]
            for length, key in known.keys.items():
                if below.get(length, {}).get(key) is known:
                    del below[length][key]
                    if not below[length]:
                        del below[length]
            if not below:
                del self._below[known.parent]
            self._count(known, -1)

    def _count(self, file: StoredFile, number: int) -> None:
        """Count a file: +1 before it is added to `_below`, -1 after it is removed."""
        self.num_bytes += number * file.num_bytes
        end, num_before = file.keys[file.length], self._ends[file.keys[file.length]]
        self._ends[end] += number
        if not num_before or not self._ends[end]:
            self._num_continued += number * (end in self._below)
        if not self._ends[end]:
            del self._ends[end]
        if file.parent not in self._below:
            self._num_continued += number * (file.parent in self._ends)


def digest_of(parent: str) -> hashlib.blake2b:
    """Hash that becomes a text's key after reading the tokens that follow `parent`."""
    return hashlib.blake2b(parent.encode(), digest_size=10)


def key_of(parent: str, tokens: array[int]) -> str:
    """Key of a text, from that of its prefix and the tokens after it."""
    digest = digest_of(parent)
    digest.update(tokens)
    return digest.hexdigest()


def root_of(namespace: str) -> str:
    """The key of the empty text."""
    return key_of(namespace, array("i"))


def owner_of(namespace: str) -> str:
    """Hash of a tenant, regardless of adapters."""
    return hashlib.blake2b(tenant_of(namespace).encode(), digest_size=4).hexdigest()

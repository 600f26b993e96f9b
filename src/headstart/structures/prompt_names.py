"""Names of the files that hold prompts: hashes of their tokens and of all before them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headstart.structures.tenants import tenant_of

SUFFIX = ".prompt"


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
        """What a file's name says.

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


def num_texts(files: Iterable[StoredFile]) -> int:
    """How many of the files have an end of a text, rather than a beginning of others."""
    files = list(files)
    parents = {file.parent for file in files}
    return sum(parents.isdisjoint(file.keys.values()) for file in files)


def digest_of(parent: str) -> hashlib.blake2b:
    """What becomes the key of a text, once it has read what stands behind its beginning."""
    return hashlib.blake2b(parent.encode(), digest_size=10)


def key_of(parent: str, tokens: array[int]) -> str:
    """Of a text, from that of its beginning and the tokens behind it."""
    digest = digest_of(parent)
    digest.update(tokens)
    return digest.hexdigest()


def root_of(namespace: str) -> str:
    """The key of no text."""
    return key_of(namespace, array("i"))


def owner_of(namespace: str) -> str:
    """Of a tenant, whatever the adapters."""
    return hashlib.blake2b(tenant_of(namespace).encode(), digest_size=4).hexdigest()

"""Prompts in files: what leaves main memory, and what was used last when the server stops.

The way of a prompt: a request reads it into cells; cells that are needed for others leave it to
main memory (`host_prompts`); what main memory drops, and what is idle for a while or at a stop, a
thread writes here. After a restart a request that begins like it waits while a thread reads the
file into main memory, and from there it goes on as any other prompt.

A file has a block of tokens (see `host_cache`); its name is a hash of these, of all before them and
of the tenant, in a folder of all that share a model and settings. So conversations that begin alike
share the files of that beginning, and names alone tell what is there. Where a cache has no blocks,
a file has a whole text, and its name a hash for each of the lengths to which it can be cut.

All servers that use the folder bound it together, and see what the others wrote when they write,
ten seconds later at most. Of the tenant that has most there, the file used longest ago goes first;
of one text its end. A thread does all that touches the disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage

from headstart.scheduler.host_cache import StoredBlock, StoredPrompt
from headstart.structures.checkpoints import Data, unpack
from headstart.structures.prompt_files import PromptHead, read_prompt, write_prompt
from headstart.structures.prompt_names import (
    SUFFIX,
    StoredFile,
    digest_of,
    key_of,
    num_texts,
    owner_of,
    root_of,
)
from headstart.structures.threads import low_priority_threads
from headstart.types.report import DiskReport

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 1 << 30  # of prompts that wait to be written; further ones are lost
LEAST_FREE = 1 << 30  # bytes of the disk that are left to others
OLD_SECONDS = 3600.0  # a temporary file of that age is nobody's
LOOK_SECONDS = 10.0  # between two lists of the folder, while there is room: others may use it
RETRY_SECONDS = 60.0  # after a file could not be written
RESTS = 20.0  # times that a piece of a file took, before the next: decodes need the processor
MOST_LENGTHS = 7  # in a name, of at most 255 bytes
_TARGET = "target"  # the model whose cache it is, among those in a file
_SECONDS_PER_BYTE, _RATE = 1e-9, 0.3  # of reading: prior, and of the average that follows


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """Where prompts are kept, and what they depend on."""

    folder: Path
    max_bytes: int
    identity: str  # of the model and its settings: its digest names the folder
    drafters: str  # of draft models and theirs: only their caches depend on that
    name: str  # of the model, for people


class DiskCache:
    """The files of one model and one set of settings, in a folder that others use too."""

    def __init__(self, place: DiskPlace) -> None:
        self._place = place
        digest = hashlib.sha256(place.identity.encode()).hexdigest()[:16]
        self._own = place.folder / f"{place.name}-{digest}"
        self._lock = threading.Lock()  # around what follows
        self._files: dict[str, StoredFile] = {}  # by name
        # by the key of the text before them and their length, files by their key
        self._below: defaultdict[str, dict[int, dict[str, StoredFile]]] = defaultdict(dict)
        self._waiting: dict[str, int] = {}  # bytes of what is to be written, by key
        self._counts = DiskReport()
        self._loading: dict[str, Future[StoredPrompt | None]] = {}
        self._ends = threading.Event()  # nothing is decoded any more
        self._too_old = 0.0  # what was not used since then finds no room
        self._failure = ""  # why nothing can be written; told once
        self._retry_at = 0.0
        self._num_bytes = 0  # in the folder, as far as the writer knows
        self._look_at = 0.0  # when it lists the folder again
        self._seconds_per_byte = _SECONDS_PER_BYTE
        self._writer = low_priority_threads("disk-writer")
        self._reader = ThreadPoolExecutor(1, "headstart-disk-reader")
        self._writer.submit(self._look)

    def find(self, namespace: str, tokens: array[int]) -> tuple[list[StoredFile], int]:
        """The files of the longest beginning of a text, and its length. O(that length)."""
        chain, length, parent = list[StoredFile](), 0, root_of(namespace)
        with self._lock:
            while known := self._matches(parent, length, tokens):
                length, (parent, file) = max(known.items())
                chain.append(file)
        return chain, length

    def knows(self, namespace: str, tokens: array[int]) -> bool:
        """Whether all of these tokens are there, or will be."""
        is_there = self.find(namespace, tokens)[1] == len(tokens)
        return is_there or key_of(root_of(namespace), tokens) in self._waiting

    def reading_seconds(self, files: Sequence[StoredFile]) -> float:
        """How long it takes to bring files to main memory, as measured."""
        return sum(file.num_bytes for file in files) * self._seconds_per_byte

    def put(self, prompt: StoredPrompt) -> bool:
        """Write a prompt in the background; False if it is known, if all files were used later, or
        if too much waits.
        """
        num_bytes = prompt.num_bytes
        if num_bytes > self._place.max_bytes or prompt.last_used <= self._too_old:
            return False
        if self.knows(prompt.namespace, prompt.tokens):
            return False
        key = key_of(root_of(prompt.namespace), prompt.tokens)
        with self._lock:
            is_full = sum(self._waiting.values()) + num_bytes > MAX_WAITING_BYTES
            if is_full or time.monotonic() < self._retry_at:
                return False
            self._waiting[key] = num_bytes
        self._writer.submit(self._write, key, prompt)
        return True

    def erase(self, namespace: str, tokens: array[int]) -> None:
        """Remove the files of a text, but for a beginning that others share."""
        chain, length = self.find(namespace, tokens)
        if length == len(tokens):
            for file in reversed(chain):
                if not self._below.keys().isdisjoint(file.keys.values()):
                    break
                self._forget(file)
                self._writer.submit(self._drop, file)

    def load(self, namespace: str, files: Sequence[StoredFile]) -> Future[StoredPrompt | None]:
        """Read what `find` found in the background; None if it cannot be used."""
        name = files[-1].path.stem
        with self._lock:
            loading = self._loading.get(name)
            if loading is None:
                loading = self._loading[name] = self._reader.submit(self._load, namespace, files)
        return loading

    def report(self) -> DiskReport:
        """What is there and what was done."""
        with self._lock:
            return self._counts

    def finish(self, seconds: float) -> None:
        """Write what waits, for so long at most."""
        self._ends.set()
        done = threading.Event()
        self._writer.submit(done.set)
        done.wait(seconds)
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(cancel_futures=True)

    def _matches(
        self, parent: str, start: int, tokens: array[int]
    ) -> dict[int, tuple[str, StoredFile]]:
        """By length, the files behind a text of `start` tokens that this one goes on with."""
        digest, at, found = digest_of(parent), start, dict[int, tuple[str, StoredFile]]()
        for length in sorted(self._below.get(parent, ())):
            if start < length <= len(tokens):
                digest.update(tokens[at:length])
                at, key = length, digest.copy().hexdigest()
                if file := self._below[parent][length].get(key):
                    found[length] = key, file
        return found

    def _write(self, key: str, prompt: StoredPrompt) -> None:
        try:
            self._own.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts are private
            files = self._files_of(prompt)
            for path in (path for path, _, _ in files if path.stem in self._files):
                with suppress(FileNotFoundError):
                    os.utime(path, (prompt.last_used, prompt.last_used))
            missing = [one for one in files if one[0].stem not in self._files]
            if not self._make_room(prompt, sum(sum(head.sizes.values()) for _, head, _ in missing)):
                return
            for path, head, caches in missing:
                write_prompt(path, head, caches, lambda s: self._ends.wait(RESTS * s))
                os.utime(path, (prompt.last_used, prompt.last_used))
                self._add(StoredFile.of(path, path.stat().st_size))
            self._drop_shorter(prompt)
            with self._lock:
                self._counts = replace(self._counts, num_written=self._counts.num_written + 1)
            self._failure = ""
        except (OSError, MemoryError) as error:
            self._fail(f"{self._own}: {error}")
        finally:
            with self._lock:
                del self._waiting[key]
            self._count()

    def _files_of(self, prompt: StoredPrompt) -> list[tuple[Path, PromptHead, list[Data]]]:
        """What a prompt's files are called and hold, in order."""
        parent, owner = root_of(prompt.namespace), owner_of(prompt.namespace)
        made = list[tuple[Path, PromptHead, list[Data]]]()
        for block in prompt.blocks:
            tokens = prompt.tokens[block.start : block.end]
            keys = {
                one: key_of(parent, tokens[: one - block.start]) for one in _lengths(prompt, block)
            }
            caches = {_TARGET: block.data}
            if block is prompt.blocks[-1]:
                drafters = self._place.drafters
                caches |= {f"{name} {drafters}": data for name, data in prompt.others.items()}
            sizes = {name: len(data) for name, data in caches.items()}
            own = self._place.identity, prompt.namespace, block.start
            head = PromptHead(*own, tokens, prompt.num_prompt, sizes)
            name = StoredFile.name(owner, parent, prompt.num_prompt, keys)
            made.append((self._own / name, head, list(caches.values())))
            parent = keys[block.end]
        return made

    def _drop_shorter(self, prompt: StoredPrompt) -> None:
        """Remove ends of texts that this one continues, perhaps without the answer."""
        parent, start = root_of(prompt.namespace), 0
        for block in prompt.blocks:
            with self._lock:
                known = self._matches(parent, start, prompt.tokens)
            for length, (_, file) in known.items():
                is_last = self._below.keys().isdisjoint(file.keys.values())
                is_continued = length >= min(file.num_prompt, file.length)
                if file.length != block.end and is_last and is_continued:
                    self._drop(file)
            start, parent = block.end, key_of(parent, prompt.tokens[block.start : block.end])

    def _load(self, namespace: str, files: Sequence[StoredFile]) -> StoredPrompt | None:
        started, num_bytes = time.perf_counter(), 0
        with self._lock:  # what begins like it from now on finds it in main memory
            self._loading.pop(files[-1].path.stem, None)
        text, blocks, num_prompt = array("i"), list[StoredBlock](), 0
        parent, others = root_of(namespace), dict[str, Data]()
        for file in files:
            try:
                head, caches = read_prompt(file.path)
                own = (self._place.identity, namespace, len(text), file.keys[file.length])
                if (head.identity, head.namespace, head.start, key_of(parent, head.tokens)) != own:
                    raise ValueError("it is another prompt's")
                os.utime(file.path)
            except FileNotFoundError:  # another server removed it
                self._forget(file)
                break
            except (OSError, ValueError, KeyError, TypeError, MemoryError) as error:
                log.warning("a prompt on the disk is not used: %s: %s", file.path, error)
                self._drop(file)
                break
            blocks.append(StoredBlock(len(text), file.length, caches.pop(_TARGET)))
            parent = file.keys[file.length]
            text.extend(head.tokens)
            num_prompt, others, num_bytes = head.num_prompt, caches, num_bytes + file.num_bytes
        self._count()
        if not blocks:
            return None
        seconds = (time.perf_counter() - started) / num_bytes
        with self._lock:
            self._seconds_per_byte += _RATE * (seconds - self._seconds_per_byte)
            self._counts = replace(
                self._counts,
                num_restored=self._counts.num_restored + 1,
                num_tokens_restored=self._counts.num_tokens_restored + len(text),
            )
        ending = f" {self._place.drafters}"  # others may have other drafters
        known = {n.removesuffix(ending): data for n, data in others.items() if n.endswith(ending)}
        return StoredPrompt(namespace, text, tuple(blocks), num_prompt, others=known)

    def _make_room(self, prompt: StoredPrompt, num_bytes: int) -> bool:
        """Remove files that were not used since, until there is room for so many bytes; the folder
        is listed for that, and now and then.
        """
        free = disk_usage(self._own).free - LEAST_FREE
        self._num_bytes += num_bytes
        is_room = num_bytes <= free and self._num_bytes <= self._place.max_bytes
        if is_room and time.monotonic() < self._look_at:
            return True
        files, sizes = self._look(), Counter[str]()
        for _, _, file in files:
            sizes[file.owner] += file.num_bytes
        sizes[owner_of(prompt.namespace)] += num_bytes
        bound = min(self._place.max_bytes, sizes.total() - num_bytes + free)
        if num_bytes > bound:
            self._fail(f"{self._place.folder}: the disk has no room for {num_bytes >> 20} MiB")
            return False
        left = sorted(files, key=lambda one: one[:2], reverse=True)
        while sizes.total() > bound:
            most = max(sizes, key=sizes.__getitem__)
            oldest = next((one for one in reversed(left) if one[2].owner == most), None)
            if oldest is None or oldest[0] >= prompt.last_used:
                self._too_old = prompt.last_used
                return False
            left.remove(oldest)
            sizes[most] -= oldest[2].num_bytes
            self._drop(oldest[2])
        self._num_bytes = sizes.total()
        return True

    def _look(self) -> list[tuple[float, int, StoredFile]]:
        """When each file of the folder was used, less its length, and what it is; the index follows
        what other servers did.
        """
        found: list[tuple[float, int, StoredFile]] = []
        try:
            for folder in self._place.folder.glob("*/"):
                for entry in os.scandir(folder):
                    with suppress(FileNotFoundError, ValueError):
                        self._note(Path(entry.path), entry.stat(), found)
        except OSError as error:
            self._fail(f"{self._place.folder}: {error}")
        there = {file.path.stem: file for _, _, file in found if file.path.parent == self._own}
        with self._lock:
            gone = [file for name, file in self._files.items() if name not in there]
            new = [file for name, file in there.items() if name not in self._files]
        for file in gone:
            self._forget(file)
        for file in new:
            self._add(file)
        self._count()
        self._num_bytes = sum(file.num_bytes for _, _, file in found)
        self._look_at = time.monotonic() + LOOK_SECONDS
        return found

    def _note(
        self, path: Path, stat: os.stat_result, found: list[tuple[float, int, StoredFile]]
    ) -> None:
        """A file of the folder.

        Raises:
            ValueError: it is none of ours.
        """
        if path.suffix == SUFFIX:
            file = StoredFile.of(path, stat.st_size)
            found.append((stat.st_mtime, -file.length, file))
        elif path.suffix == ".tmp" and time.time() - stat.st_mtime > OLD_SECONDS:
            path.unlink()

    def _add(self, file: StoredFile) -> None:
        with self._lock:
            self._files[file.path.stem] = file
            for length, key in file.keys.items():
                self._below[file.parent].setdefault(length, {})[key] = file

    def _drop(self, file: StoredFile) -> None:
        self._forget(file)
        with suppress(OSError):
            file.path.unlink(missing_ok=True)

    def _forget(self, file: StoredFile) -> None:
        with self._lock:
            if self._files.pop(file.path.stem, None) is None:
                return
            below = self._below[file.parent]
            for length, key in file.keys.items():
                below[length].pop(key, None)
                if not below[length]:
                    del below[length]
            if not below:
                del self._below[file.parent]

    def _count(self) -> None:
        """For reports: texts that no other goes on with, and bytes."""
        with self._lock:
            files = list(self._files.values())
            num_prompts = num_texts(files)
            num_bytes = sum(file.num_bytes for file in files)
            self._counts = replace(self._counts, num_prompts=num_prompts, num_bytes=num_bytes)

    def _fail(self, reason: str) -> None:
        if not self._failure:
            log.warning("prompts are not kept on the disk: %s", reason)
        self._failure, self._retry_at = reason, time.monotonic() + RETRY_SECONDS


def _lengths(prompt: StoredPrompt, block: StoredBlock) -> list[int]:
    """To which a file's text can be cut, as far as its name has room."""
    parts = unpack(block.data)
    lengths = {checkpoint.length for checkpoint in parts[1]} if parts else set()
    lengths.add(prompt.num_prompt)  # the next turn may lack the answer: thoughts are not sent
    inner = sorted(one for one in lengths if block.start < one < block.end)
    return [*inner[:1], *inner[1:][2 - MOST_LENGTHS :], block.end]

"""Prompts in files: what leaves main memory, and what was used last when the server stops.

The way of a prompt: a request reads it into cells; cells that are needed for others leave it to
main memory (`host_prompts`); what main memory drops, and what is idle for a while or at a stop, a
thread writes here. After a restart a request that begins like it waits while a thread reads the
file into main memory, and from there it goes on as any other prompt.

One file a prompt, under the name of its text and tenant, in a folder of all that share a model and
settings. All servers that use the folder bound it together, and see what the others wrote whenever
they write. The file used longest ago goes first. A thread does all that touches the disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from array import array
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage

from headstart.scheduler.host_cache import TARGET, StoredPrompt
from headstart.structures.checkpoints import unpack
from headstart.structures.prefix_tree import PrefixTree
from headstart.structures.prompt_files import PromptHead, read_head, read_prompt, write_prompt
from headstart.structures.threads import low_priority_threads
from headstart.types.report import DiskReport

log = logging.getLogger(__name__)

SUFFIX = ".prompt"
MAX_WAITING_BYTES = 1 << 30  # of prompts that wait to be written; further ones are lost
LEAST_FREE = 1 << 30  # bytes of the disk that are left to others
OLD_SECONDS = 3600.0  # a temporary file of that age is nobody's
RETRY_SECONDS = 60.0  # after a file could not be written
RESTS = 20.0  # times that a piece of a file took, before the next: decodes need the processor
_SECONDS_PER_BYTE, _RATE = 1e-9, 0.3  # of reading: prior, and of the average that follows


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile:
    """A prompt on the disk."""

    path: Path
    namespace: str
    tokens: array[int]
    num_prompt: int  # of the tokens, those that were asked; the rest is the answer
    lengths: tuple[int, ...]  # to which its cache can be cut, where it cannot be cut anywhere
    num_bytes: int


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
        self._trees: defaultdict[str, PrefixTree[StoredFile]] = defaultdict(PrefixTree)
        self._waiting: dict[str, int] = {}  # bytes of what is to be written, by name
        self._counts = DiskReport()
        self._loading: dict[str, Future[StoredPrompt | None]] = {}
        self._ends = threading.Event()  # nothing is decoded any more
        self._too_old = 0.0  # what was not used since then finds no room
        self._failure = ""  # why nothing can be written; told once
        self._retry_at = 0.0
        self._seconds_per_byte = _SECONDS_PER_BYTE
        self._writer = low_priority_threads("disk-writer")
        self._reader = ThreadPoolExecutor(1, "headstart-disk-reader")
        self._writer.submit(self._look)

    def find(self, namespace: str, tokens: array[int]) -> tuple[StoredFile | None, int]:
        """A file with the longest common prefix, and its length. O(that length)."""
        with self._lock:
            return self._trees[namespace].find(tokens) if namespace in self._trees else (None, 0)

    def knows(self, namespace: str, tokens: array[int]) -> bool:
        """Whether a file begins with all of these tokens, or will."""
        is_there = self.find(namespace, tokens)[1] == len(tokens)
        return is_there or _name_of(namespace, tokens) in self._waiting

    def reading_seconds(self, file: StoredFile) -> float:
        """How long it takes to bring a file to main memory, as measured."""
        return file.num_bytes * self._seconds_per_byte

    def put(self, prompt: StoredPrompt) -> bool:
        """Write a prompt in the background; False if it is known, if all files were used later, or
        if too much waits.
        """
        name, num_bytes = _name_of(prompt.namespace, prompt.tokens), prompt.num_bytes
        if num_bytes > self._place.max_bytes or prompt.last_used <= self._too_old:
            return False
        if min(prompt.tokens) < 0:  # an image, whose cells depend on more than `identity` says
            return False
        if self.knows(prompt.namespace, prompt.tokens):
            return False
        with self._lock:
            is_full = sum(self._waiting.values()) + num_bytes > MAX_WAITING_BYTES
            if is_full or time.monotonic() < self._retry_at:
                return False
            self._waiting[name] = num_bytes
        self._writer.submit(self._write, name, prompt)
        return True

    def erase(self, namespace: str, tokens: array[int]) -> None:
        """Remove the file of a text."""
        file, num_common = self.find(namespace, tokens)
        if file is not None and num_common == len(tokens) == len(file.tokens):
            self._writer.submit(self._drop, file)

    def load(self, file: StoredFile) -> Future[StoredPrompt | None]:
        """Read a file in the background; None if it cannot be used."""
        with self._lock:
            name = file.path.stem
            loading = self._loading.get(name)
            if loading is None:
                loading = self._loading[name] = self._reader.submit(self._load, file)
        return loading

    def report(self) -> DiskReport:
        """What is there and what was done."""
        with self._lock:
            return replace(self._counts, num_prompts=len(self._files))

    def finish(self, seconds: float) -> None:
        """Write what waits, for so long at most."""
        self._ends.set()
        done = threading.Event()
        self._writer.submit(done.set)
        done.wait(seconds)
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(cancel_futures=True)

    def _write(self, name: str, prompt: StoredPrompt) -> None:
        path, data = self._own / f"{name}{SUFFIX}", dict(prompt.data)
        try:
            self._own.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts are private
            parts = unpack(data[TARGET])
            head = PromptHead(
                self._place.identity,
                prompt.namespace,
                prompt.tokens,
                prompt.num_prompt,
                tuple(checkpoint.length for checkpoint in parts[1]) if parts else (),
                {self._part(model): len(cache) for model, cache in data.items()},
            )
            if not self._make_room(prompt):
                return
            write_prompt(path, head, data.values(), lambda s: self._ends.wait(RESTS * s))
            os.utime(path, (prompt.last_used, prompt.last_used))
            # of the conversation that it continues it may lack the answer: thoughts are not sent
            older, num_common = self.find(head.namespace, head.tokens)
            if older is not None and num_common >= older.num_prompt:
                self._drop(older)
            self._add(path, head)
            with self._lock:
                self._counts = replace(self._counts, num_written=self._counts.num_written + 1)
            self._failure = ""
        except (OSError, MemoryError) as error:
            self._fail(f"{path}: {error}")
        finally:
            with self._lock:
                del self._waiting[name]

    def _load(self, file: StoredFile) -> StoredPrompt | None:
        started = time.perf_counter()
        with self._lock:  # what begins like it from now on finds it in main memory
            self._loading.pop(file.path.stem, None)
        try:
            head, caches = read_prompt(file.path)
            own = (self._place.identity, file.namespace, file.tokens)
            if (head.identity, head.namespace, head.tokens) != own:
                raise ValueError("it is another prompt's")
            os.utime(file.path)
        except FileNotFoundError:  # another server removed it
            self._forget(file)
            return None
        except (OSError, ValueError, KeyError, TypeError, MemoryError) as error:
            log.warning("a prompt on the disk is not used: %s: %s", file.path, error)
            self._drop(file)
            return None
        seconds = (time.perf_counter() - started) / file.num_bytes
        with self._lock:
            self._seconds_per_byte += _RATE * (seconds - self._seconds_per_byte)
            self._counts = replace(
                self._counts,
                num_restored=self._counts.num_restored + 1,
                num_tokens_restored=self._counts.num_tokens_restored + len(head.tokens),
            )
        names = {self._part(model): model for model in self._models(head)}
        data = {names[part]: cache for part, cache in caches.items() if part in names}
        return StoredPrompt(head.namespace, head.tokens, data, head.num_prompt)

    def _part(self, model: str) -> str:
        """What a model's cache is called in files; others may have other drafters."""
        return model if model == TARGET else f"{model} {self._place.drafters}"

    def _models(self, head: PromptHead) -> list[str]:
        return [part.partition(" ")[0] for part in head.sizes]

    def _make_room(self, prompt: StoredPrompt) -> bool:
        """See what is in the folder, and remove files that were not used since, until there is room
        for one more.
        """
        files, num_bytes = self._look(), prompt.num_bytes
        total = sum(size for _, size, _ in files)
        free = disk_usage(self._own).free - LEAST_FREE
        bound = min(self._place.max_bytes, total + free)
        if num_bytes > bound:
            self._fail(f"{self._place.folder}: the disk has no room for {num_bytes >> 20} MiB")
            return False
        for used, size, path in sorted(files):
            if total + num_bytes <= bound:
                break
            if used >= prompt.last_used:
                self._too_old = prompt.last_used
                return False
            path.unlink(missing_ok=True)
            total -= size
            if (file := self._files.get(path.stem)) is not None:
                self._forget(file)
        return True

    def _look(self) -> list[tuple[float, int, Path]]:
        """When each file of the folder was used, its bytes, and where it is; the index follows what
        other servers did.
        """
        found: list[tuple[float, int, Path]] = []
        try:
            for path in self._place.folder.glob(f"*/*{SUFFIX}"):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    found.append((stat.st_mtime, stat.st_size, path))
            for path in self._own.glob("*.tmp"):
                with suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > OLD_SECONDS:
                        path.unlink()
        except OSError as error:
            self._fail(f"{self._place.folder}: {error}")
        there = {path.stem: path for _, _, path in found if path.parent == self._own}
        with self._lock:
            gone = [file for name, file in self._files.items() if name not in there]
            new = [path for name, path in there.items() if name not in self._files]
        for file in gone:
            self._forget(file)
        for path in new:
            self._read_head(path)
        return found

    def _read_head(self, path: Path) -> None:
        """Add a file that another server, or an earlier one, wrote."""
        try:
            head = read_head(path)
            if head.identity != self._place.identity:
                raise ValueError("it is another model's")
            self._add(path, head)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("a prompt on the disk is dropped: %s: %s", path, error)
            with suppress(OSError):
                path.unlink()

    def _add(self, path: Path, head: PromptHead) -> None:
        own = (head.namespace, head.tokens, head.num_prompt, head.lengths)
        file = StoredFile(path, *own, path.stat().st_size)
        with self._lock:
            self._files[path.stem] = file
            self._trees[file.namespace].add(file.tokens, file)
            num_bytes = self._counts.num_bytes + file.num_bytes
            self._counts = replace(self._counts, num_bytes=num_bytes)

    def _drop(self, file: StoredFile) -> None:
        self._forget(file)
        with suppress(OSError):
            file.path.unlink(missing_ok=True)

    def _forget(self, file: StoredFile) -> None:
        with self._lock:
            if self._files.get(file.path.stem) is not file:
                return
            del self._files[file.path.stem]
            tree = self._trees[file.namespace]
            tree.remove(file.tokens, file)
            if tree.is_empty:
                del self._trees[file.namespace]
            num_bytes = self._counts.num_bytes - file.num_bytes
            self._counts = replace(self._counts, num_bytes=num_bytes)

    def _fail(self, reason: str) -> None:
        if not self._failure:
            log.warning("prompts are not kept on the disk: %s", reason)
        self._failure, self._retry_at = reason, time.monotonic() + RETRY_SECONDS


def _name_of(namespace: str, tokens: array[int]) -> str:
    """Of the file of a text: the same on every server."""
    owner = hashlib.blake2b(namespace.encode()).digest()
    return hashlib.blake2b(tokens.tobytes(), digest_size=16, key=owner).hexdigest()

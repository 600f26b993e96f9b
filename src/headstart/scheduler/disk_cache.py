"""Prompt cache on disk: prompts evicted from main memory, and the last ones before a stop.

The life of a prompt: a request decodes it into cells; when these are needed for others it moves to
main memory (`offloading`); when main memory evicts it, or when it was idle for a while or the
server stops, a thread writes it here. After a restart a request with the same prefix waits while a
thread reads the file into main memory, and from there it is restored as any other prompt.

A file holds a block of tokens (see `prompt_store`). Its name is a hash of these, of all before them
and of the tenant; its folder is that of the model and its settings. So conversations share the
files of a common prefix, and the names alone tell what is stored. If a cache has no blocks, a file
holds a whole text, and its name has a hash for each length to which it can be cut.

Servers that share the folder share its limit, and notice each other's files when they write, at
most ten seconds late. Eviction takes the least recently used file of the tenant with the most
bytes, and the end of a text before its beginning. All disk access is in threads.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from shutil import disk_usage
from typing import Any

from headstart.scheduler.copy_prices import Price
from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.structures.checkpoints import Data
from headstart.structures.prompt_files import (
    SUFFIX,
    PromptIndex,
    StoredFile,
    key_of,
    owner_of,
    read_prompt,
    root_of,
    write_prompt,
)
from headstart.structures.system import start_threads
from headstart.structures.tenants import TenantQueue
from headstart.types.report import DiskReport

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 1 << 30  # of prompts waiting to be written, if several; others are refused
LEAST_FREE = 1 << 30  # bytes of disk space that are left free
LOOK_SECONDS = 10.0  # between listings of the folder while there is room: others may use it
RETRY_SECONDS = 60.0  # after a file could not be written
_TARGET = "target"  # key of the target's cache among the caches in a file


class DiskCache:
    """The files of one model and one set of settings, in a folder that servers may share."""

    def __init__(
        self, folder: Path, max_bytes: int, *, name: str, identity: str, drafters: str
    ) -> None:
        """`max_bytes`: of the folder. All that is stored depends on `identity`, which says what the
        model and its settings are; the caches of draft models on `drafters` too.
        """
        self._folder, self._max_bytes, self._drafters = folder, max_bytes, drafters
        self._own = folder / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self.index = PromptIndex()
        self._lock = threading.Lock()  # guards the two fields below
        self.waiting: dict[str, int] = {}  # bytes of prompts to be written, by key
        self._loading: dict[str, Future[StoredPrompt | None]] = {}
        self._counts = Counter[str]()  # of `DiskReport`; each is written by one thread
        self.is_over = threading.Event()  # no decodes to pause for
        self._too_old: dict[str, float] = {}  # by owner: prompts used before lack room
        self.failure = ""  # why nothing can be written; logged once
        self._most_bytes, self.retry_at = 0, 0.0  # until then only smaller ones are written
        # of the whole folder, as the writer last saw it, by owner: bytes, and evictable files, the
        # least recently used last
        self._held: Counter[str] = Counter()
        self._by_age: defaultdict[str, list[tuple[float, int, StoredFile]]] = defaultdict(list)
        self._look_at = 0.0  # when to list the folder again
        self._worked = 0.0  # seconds of the writer's thread up to its last pause
        self.reading = Price()  # per byte, into main memory
        self._writer = start_threads("disk-writer", low_priority=True)
        self._reader = start_threads("disk-reader")
        self._unread = TenantQueue[tuple[Future[StoredPrompt | None], str, Sequence[StoredFile]]]()
        self._listed: Future[Any] | None = None

    def begin(self) -> Future[Any]:
        """Start listing the folder, once. Called after the server is ready, because a listing is
        slow if there are thousands of files.
        """
        if self._listed is None:
            self._listed = self._writer.submit(self._look)
        return self._listed

    def knows(self, namespace: str, tokens: array[int]) -> bool:
        """Whether all of these tokens are stored, or queued to be written."""
        is_there = self.index.find(namespace, tokens)[1] == len(tokens)
        return is_there or key_of(root_of(namespace), tokens) in self.waiting

    def takes(self, namespace: str, num_bytes: float, last_used: float) -> bool:
        """Whether there may be room for a prompt of this size, used then."""
        is_too_old = last_used <= self._too_old.get(owner_of(namespace), 0.0)
        most = self._most_bytes if time.monotonic() < self.retry_at else self._max_bytes
        return num_bytes < most and not is_too_old

    def put(self, prompt: StoredPrompt) -> bool:
        """Write a prompt in the background. Returns False if it is private, known or too large, if
        all files were used later, or if the queue is full.
        """
        num_bytes = prompt.num_bytes
        is_taken = self.takes(prompt.namespace, num_bytes, prompt.last_used)
        if prompt.is_private or not is_taken or self.knows(prompt.namespace, prompt.tokens):
            return False
        key = key_of(root_of(prompt.namespace), prompt.tokens)
        with self._lock:
            if self.waiting and sum(self.waiting.values()) + num_bytes > MAX_WAITING_BYTES:
                return False
            self.waiting[key] = num_bytes
        self._writer.submit(self._write, key, prompt)
        return True

    def erase(self, namespace: str, tokens: array[int]) -> None:
        """Remove the files of a text and of its beginnings, except for a prefix that others share.
        They are no longer found from now on; files not listed or not written yet are removed as
        soon as they are.
        """
        known = self._forget(namespace, tokens)
        self._writer.submit(lambda: [*map(self._drop, known + self._forget(namespace, tokens))])

    def _forget(self, namespace: str, tokens: array[int]) -> list[StoredFile]:
        """Remove files of a text and its beginnings from the index, except what others share."""
        beginnings, found = [(root_of(namespace), 0)], list[StoredFile]()
        for parent, start in beginnings:
            for length, (key, file) in self.index.matches(parent, start, tokens).items():
                if length == file.length:
                    beginnings.append((key, length))
                    found.append(file)
        gone = list[StoredFile]()
        for file in reversed(found):
            if self.index.is_end(file):
                self.index.remove(file)
                gone.append(file)
        return gone

    def load(
        self, namespace: str, files: Sequence[StoredFile], tenant: str
    ) -> Future[StoredPrompt | None]:
        """Read the files that `find` found, in a thread, tenants in turn; None if not usable."""
        name = files[-1].path.stem
        with self._lock:
            loading = self._loading.get(name)
            if loading is None:
                loading = self._loading[name] = Future()
                self._unread.put(tenant, (loading, namespace, files))
                self._reader.submit(self._load_next)
        return loading

    def report(self) -> DiskReport:
        return DiskReport(
            folder=str(self._folder),
            max_bytes=self._max_bytes,
            num_prompts=self.index.num_texts,
            num_bytes=self.index.num_bytes,
            **self._counts,
        )

    def finish(self, seconds: float, held: Iterable[tuple[str, array[int]]] = ()) -> None:
        """Write what is queued, for at most `seconds`; logs how much of that and `held` is lost."""
        is_late = wait([self._writer.submit(bool)], seconds).not_done
        lost = {*self.waiting}
        lost |= {key_of(root_of(one[0]), one[1]) for one in held if not self.knows(*one)}
        if lost and (is_late or self.failure):
            log.warning("%d prompts are lost: %s", len(lost), self.failure or "the disk is slow")
        for threads in (self._reader, self._writer):
            threads.shutdown(wait=False, cancel_futures=True)

    def _write(self, key: str, prompt: StoredPrompt) -> None:
        try:
            self._own.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts are private
            missing: list[tuple[StoredFile, array[int], dict[str, Data]]] = []
            used = prompt.last_used
            for file, tokens, caches in self._files_of(prompt):
                if there := self.index.same_text(file):
                    try:
                        os.utime(there.path, (used, used))
                        continue
                    except FileNotFoundError:  # removed by another server or by the user
                        self.index.remove(there)
                missing.append((file, tokens, caches))
            if not self._make_room(prompt, sum(file.num_bytes for file, _, _ in missing)):
                return
            for file, tokens, caches in missing:
                write_prompt(file.path, tokens, caches, self._rest)
                with suppress(FileNotFoundError):  # already removed again
                    os.utime(file.path, (used, used))
                    num_bytes = file.path.stat().st_size
                    self._held[file.owner] += num_bytes - file.num_bytes
                    self.index.add(replace(file, num_bytes=num_bytes))
            self._drop_shorter(prompt)
            self._counts["num_written"] += 1
            self.failure = ""
        except (OSError, MemoryError) as error:
            self._fail(f"{self._own}: {error}")
        finally:
            with self._lock:
                del self.waiting[key]

    def _rest(self) -> None:
        """Pause for 40 times as long as it worked, which leaves the processor to decodes."""
        self.is_over.wait(40.0 * (time.thread_time() - self._worked))
        self._worked = time.thread_time()

    def _files_of(
        self, prompt: StoredPrompt
    ) -> list[tuple[StoredFile, array[int], dict[str, Data]]]:
        """Names and contents of a prompt's files, in order.

        Only the file that may contain the end of the prompt records its length, so that
        conversations of any length share their prefix.
        """
        parent, owner = root_of(prompt.namespace), owner_of(prompt.namespace)
        made: list[tuple[StoredFile, array[int], dict[str, Data]]] = []
        for block in prompt.blocks:
            tokens = prompt.tokens[block.start : block.end]
            keys = {
                one: key_of(parent, tokens[: one - block.start]) for one in _lengths(prompt, block)
            }
            caches, num_prompt = {_TARGET: block.data}, min(prompt.num_prompt, block.end)
            if block is prompt.blocks[-1]:
                others = prompt.others.items()
                caches |= {f"{name} {self._drafters}": data for name, data in others}
            path = self._own / StoredFile.name(owner, parent, num_prompt, keys)
            num_bytes = sum(map(len, caches.values()))
            made.append((StoredFile.of(path, num_bytes), tokens, caches))
            parent = keys[block.end]
        return made

    def _drop_shorter(self, prompt: StoredPrompt) -> None:
        """Remove the last files of texts that this one continues, with their answer or without."""
        parent, start = root_of(prompt.namespace), 0
        for block in prompt.blocks:
            for length, (_, file) in self.index.matches(parent, start, prompt.tokens).items():
                is_continued = length >= min(file.num_prompt, file.length)
                if file.length != block.end and self.index.is_end(file) and is_continued:
                    self._drop(file)
            start, parent = block.end, key_of(parent, prompt.tokens[block.start : block.end])

    def _load_next(self) -> None:
        with self._lock:
            asked = self._unread.take()
        assert asked is not None
        loading, namespace, files = asked
        try:
            loading.set_result(self._load(namespace, files))
        except BaseException as error:
            loading.set_exception(error)

    def _load(self, namespace: str, files: Sequence[StoredFile]) -> StoredPrompt | None:
        started, num_bytes = time.perf_counter(), 0
        with self._lock:  # later requests with this prefix find it in main memory
            self._loading.pop(files[-1].path.stem, None)
        text, blocks, others = array("i"), list[StoredBlock](), dict[str, Data]()
        parent = root_of(namespace)
        for file in files:
            try:
                tokens, caches = read_prompt(file.path)
                if key_of(parent, tokens) != file.keys[file.length]:
                    raise ValueError("it is another prompt's")
                os.utime(file.path)
                blocks.append(StoredBlock(len(text), file.length, caches.pop(_TARGET)))
            except Exception as error:  # whatever the file holds, the prompt is decoded again
                if not isinstance(error, FileNotFoundError):  # removed by another server
                    log.warning("a prompt on the disk is not used: %s: %s", file.path, error)
                is_damaged = not isinstance(error, OSError | MemoryError)
                (self._drop if is_damaged else self.index.remove)(file)
                break
            parent = file.keys[file.length]
            text.extend(tokens)
            others, num_bytes = caches, num_bytes + file.num_bytes
        if not blocks:
            return None
        self.reading.observe((time.perf_counter() - started) / num_bytes)
        self._counts.update(num_restored=1, num_tokens_restored=len(text))
        ending = f" {self._drafters}"  # files may come from servers with other draft models
        known = {n.removesuffix(ending): data for n, data in others.items() if n.endswith(ending)}
        num_prompt = files[len(blocks) - 1].num_prompt
        return StoredPrompt(namespace, text, tuple(blocks), num_prompt, others=known)

    def _make_room(self, prompt: StoredPrompt, num_bytes: int) -> bool:
        """Remove less recently used files until `num_bytes` fit. The folder is listed periodically,
        and again when all files known to be evictable are gone.
        """
        if time.monotonic() >= self._look_at:
            self._look()
        held, owner, has_looked = self._held, owner_of(prompt.namespace), False
        free = disk_usage(self._own).free - LEAST_FREE
        bound = min(self._max_bytes, held.total() + free)
        if num_bytes > bound:
            left = f"{LEAST_FREE >> 20} MiB of its disk are left to others"
            self._fail(f"{self._folder} has no room: {left}", max(0, bound))
            return False
        while held.total() + num_bytes > bound:
            held[owner] += 0  # creates the entry of a new owner
            most = max(held, key=lambda one: held[one] + num_bytes * (one == owner))
            if not self._by_age[most] and not has_looked:
                self._look()
                has_looked = True
                continue
            used, _, file = self._by_age[most].pop() if self._by_age[most] else (inf, 0, None)
            if file is None or used >= prompt.last_used:
                self._too_old[owner] = prompt.last_used
                return False
            with suppress(FileNotFoundError):
                if file.path.stat().st_mtime > used:  # used since the folder was listed
                    continue
            held[most] -= file.num_bytes
            self._drop(file)
        held[owner] += num_bytes
        return True

    def _look(self) -> None:
        """List the folder, so that the index includes what other servers did."""
        found: list[tuple[float, int, StoredFile]] = []
        for folder in self._folder.glob("*/"):
            with suppress(OSError):  # owned by another user, or removed meanwhile
                for number, entry in enumerate(os.scandir(folder), 1):
                    with suppress(FileNotFoundError, ValueError):  # of a name that is not ours
                        path, stat = Path(entry.path), entry.stat()
                        if path.suffix == SUFFIX:
                            file = StoredFile.of(path, stat.st_size)
                            found.append((stat.st_mtime, -file.length, file))
                        elif path.suffix == ".tmp" and time.time() - stat.st_mtime > 3600.0:
                            path.unlink()  # of a dead process
                    if not number % 64 and self._look_at:  # not at the start
                        self._rest()
        there = {file.path.stem: file for _, _, file in found if file.path.parent == self._own}
        for file in self.index:
            if file.path.stem not in there:
                self.index.remove(file)
        for file in there.values():
            self.index.add(file)
        self._held.clear()
        self._by_age.clear()
        for used, length, file in sorted(found, key=lambda one: one[:2], reverse=True):
            self._held[file.owner] += file.num_bytes
            self._by_age[file.owner].append((used, length, file))
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _drop(self, file: StoredFile) -> None:
        self.index.remove(file)
        with suppress(OSError):
            file.path.unlink(missing_ok=True)

    def _fail(self, reason: str, most_bytes: int = 0) -> None:
        """Write nothing larger than `most_bytes` for a while."""
        if not self.failure:
            log.warning("prompts are not kept on the disk: %s", reason)
        self.failure, self._most_bytes = reason, most_bytes
        self.retry_at = time.monotonic() + RETRY_SECONDS


def _lengths(prompt: StoredPrompt, block: StoredBlock) -> list[int]:
    """Lengths to which a file's text can be truncated, as many as its name has room for."""
    # the next turn may lack the answer: thoughts are not sent back
    lengths = {*block.checkpoints, prompt.num_prompt}
    inner = sorted(one for one in lengths if block.start < one < block.end)
    return [*inner[:1], *inner[1:][-5:], block.end]  # a file's name has at most 255 bytes

"""Recorded texts: a file a tenant and some hours, a JSON line a text, and what they are split into.

A line holds token ids, because drafts are tokens, and all on which the choice of a token depends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.structures.atomic import replace_file
from headstart.types.errors import ConfigError
from headstart.types.sampling_params import LogitBias, SamplingParams

FILE_SECONDS = 86_400.0  # a file that is as old is closed, or when it takes its part of all
DRAFTERS = "drafters.json"  # draft models made from these texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedText:
    """One answer: token ids and the parameters that chose them."""

    recorded: float  # seconds since 1970
    model: str  # digest of the target
    tenant: str  # hash of the API key or tenant; empty without keys
    prompt: Sequence[int]
    answer: Sequence[int]
    sampling: SamplingParams
    conversation: int = 0  # number in `read_texts`

    def line(self) -> bytes:
        """The text as a line of JSON."""
        default = SamplingParams()
        sampling = {
            one.name: value
            for one in fields(SamplingParams)
            if (value := getattr(self.sampling, one.name)) != getattr(default, one.name)
        }
        if "logit_bias" in sampling:
            sampling["logit_bias"] = list(sampling["logit_bias"].items())
        row: dict[str, Any] = {"recorded": self.recorded, "model": self.model}
        row |= {"tenant": self.tenant, "sampling": sampling}
        # Python loops, which release the interpreter to the engine regularly
        tokens = [
            f'"{name}":[{",".join([str(token) for token in ids])}]'
            for name, ids in (("prompt", self.prompt), ("answer", self.answer))
        ]
        others = json.dumps(row, separators=(",", ":")).removesuffix("}")
        return f"{','.join([others, *tokens])}}}\n".encode()

    @classmethod
    def parse(cls, line: bytes) -> RecordedText:
        """Parse a line.

        Raises:
            ValueError: it is malformed.
        """
        try:
            row = json.loads(line)
            sampling = row.pop("sampling")
            if "logit_bias" in sampling:
                sampling["logit_bias"] = LogitBias(dict(sampling["logit_bias"]))
            for name in ("samplers", "dry_sequence_breakers"):
                if name in sampling:
                    sampling[name] = tuple(sampling[name])
            return cls(**row, sampling=SamplingParams(**sampling))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


class TextFiles:
    """The files of one folder; several processes may write to them."""

    def __init__(self, folder: Path, max_bytes: int, max_seconds: float) -> None:
        """Delete what is too old.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self._folder, self._max_bytes, self._max_seconds = folder, max_bytes, max_seconds
        self._current: dict[str, Path] = {}  # by tenant
        self._num_bytes = 0  # of all files
        self._checked = 0.0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(folder):
                self._expire(time.time())
        except OSError as error:
            raise ConfigError(
                f"--record-texts {folder} cannot be written: {error.strerror}; name another folder"
            ) from None

    def write(self, text: RecordedText) -> None:
        """Append a text.

        Raises:
            OSError: it cannot be written.
        """
        line = text.line()
        with locked(self._folder):
            path = self._current.get(text.tenant)
            if path is None or not self._has_room(path, text.recorded):
                name = f"{int(text.recorded * 1e9)}-{os.getpid()}-{text.tenant}.jsonl"
                path = self._current[text.tenant] = self._folder / name
                self._checked = 0.0
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "ab") as file:
                file.write(line)
            self._num_bytes += len(line)
            is_due = text.recorded > self._checked + FILE_SECONDS / 24
            if is_due or self._num_bytes > self._max_bytes:
                self._expire(text.recorded)

    def _has_room(self, path: Path, now: float) -> bool:
        if not path.exists():  # purged
            return False
        is_young = now - _begun(path) < FILE_SECONDS
        return is_young and path.stat().st_size < self._max_bytes // 16

    def _expire(self, now: float) -> None:
        """Delete files whose newest text is too old, then the oldest of the tenant that has most,
        until all fit.
        """
        self._checked = now
        files, held = {path: path.stat() for path in text_files(self._folder)}, Counter[str]()
        for path, one in files.items():
            held[_tenant_of(path)] += one.st_size

        def delete(path: Path) -> None:
            path.unlink()
            held[_tenant_of(path)] -= files.pop(path).st_size

        for path in [p for p, one in files.items() if now - one.st_mtime > self._max_seconds]:
            delete(path)
        while held.total() > self._max_bytes:
            most = max(held, key=held.__getitem__)
            delete(next(path for path in files if _tenant_of(path) == most))
        self._num_bytes = held.total()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against writes and purges of other processes."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def text_files(folder: Path) -> list[Path]:
    """The oldest first."""
    return sorted(folder.glob("*-*-*.jsonl"), key=_begun)


def _begun(path: Path) -> float:
    """Seconds since 1970."""
    first = path.name.partition("-")[0]
    return int(first) / 1e9 if first.isdecimal() else 0.0


def _tenant_of(path: Path) -> str:
    return path.stem.split("-", 2)[2]


def purge(
    folder: Path, tenants: Collection[str] | None, before: float
) -> tuple[int, list[dict[str, Any]]]:
    """Delete texts of these tenants (None: of all) that were recorded before a time.

    Returns their number, and the entries of draft models that were made from some of them.
    """
    num_deleted, made = 0, read_drafters(folder)
    touched: list[dict[str, Any]] = []
    with locked(folder):
        for path in text_files(folder):
            kept = []
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    text = RecordedText.parse(line)
                except ValueError:  # the power failed; nothing can be made of it
                    continue
                if text.recorded >= before or (tenants is not None and text.tenant not in tenants):
                    kept.append(line)
                    continue
                num_deleted += 1
                touched += [
                    one
                    for one in made
                    if one not in touched
                    and Path(one["path"]).exists()
                    and text.tenant in one["tenants"]
                    and one["first"] <= text.recorded <= one["last"]
                ]
            if kept:
                replace_file(path, b"".join(kept))
            else:
                path.unlink()
        for file in folder.glob("training.*") if num_deleted else ():  # of an interrupted training
            file.unlink()
    return num_deleted, touched


def read_drafters(folder: Path) -> list[dict[str, Any]]:
    """Draft models made from these texts: path, tenants and time."""
    file = folder / DRAFTERS
    entries: list[dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.exists() else []
    return entries


def note_drafter(folder: Path, path: Path, base: Path, texts: Sequence[RecordedText]) -> None:
    """Remember that a draft model was made from texts, and from those that its base was made from,
    so that a purge can name it.
    """
    with locked(folder):
        known = read_drafters(folder)
        bases = [one for one in known if one["path"] == str(base.resolve())]
        tenants = {text.tenant for text in texts}.union(*(one["tenants"] for one in bases))
        times = [text.recorded for text in texts]
        times += [one[end] for one in bases for end in ("first", "last")]
        entry = {
            "path": str(path.resolve()),
            "tenants": sorted(tenants),
            "first": min(times),
            "last": max(times),
        }
        others = [one for one in known if one["path"] != entry["path"]]
        replace_file(folder / DRAFTERS, json.dumps([*others, entry], indent=1).encode())


def read_texts(
    folder: Path, model: str, tenants: Collection[str] | None = None
) -> list[RecordedText]:
    """The texts of a target, the oldest first; each once, by conversation. Loops and answers of one
    token are left out.

    A prompt that begins with a whole earlier prompt of the same tenant continues it.

    Raises:
        ConfigError: there is no folder, or no text of this target in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"--texts {folder} is no folder; name the one of serve --record-texts")
    texts: dict[tuple[str, bytes, bytes], RecordedText] = {}
    for path in text_files(folder):
        for line in path.read_bytes().splitlines():
            try:
                text = RecordedText.parse(line)
            except ValueError:
                continue
            if text.model == model and (tenants is None or text.tenant in tenants):
                key = (text.tenant, _bytes(text.prompt), _bytes(text.answer))
                texts.setdefault(key, text)
    # the first token of an answer comes with the prompt: no draft is for it
    longer = [one for one in texts.values() if len(one.answer) > 1]
    kept = [one for one in longer if num_looping(one.answer) <= 0.5 * len(one.answer)]
    if not kept:
        raise ConfigError(
            f"--texts {folder} has no text of this model; start headstart serve with the same "
            "model and --record-texts, and use it for some days"
        )
    return _by_conversation(sorted(kept, key=lambda text: text.recorded))


def _by_conversation(texts: Iterable[RecordedText]) -> list[RecordedText]:
    known: dict[tuple[str, bytes], int] = {}  # (tenant, prompt) -> conversation
    lengths: dict[str, set[int]] = {}  # bytes of these prompts, by tenant
    numbered: list[RecordedText] = []
    for text in texts:
        prompt, own = _bytes(text.prompt), lengths.setdefault(text.tenant, set())
        earlier = (
            known[text.tenant, prompt[:length]]
            for length in sorted(own, reverse=True)
            if length <= len(prompt) and (text.tenant, prompt[:length]) in known
        )
        number = next(earlier, len(numbered))
        known[text.tenant, prompt] = number
        own.add(len(prompt))
        numbered.append(replace(text, conversation=number))
    return numbered


def split(texts: Sequence[RecordedText]) -> tuple[list[RecordedText], list[RecordedText]]:
    """Texts of the earlier conversations, and of the later ones, which nothing is learned from."""
    first = list(dict.fromkeys(text.conversation for text in texts))
    earlier = set(first[: int(0.7 * len(first))])
    return (
        [text for text in texts if text.conversation in earlier],
        [text for text in texts if text.conversation not in earlier],
    )


def without_duplicates(
    texts: Sequence[RecordedText], tests: Sequence[RecordedText]
) -> list[RecordedText]:
    """Texts whose answer is not, almost word for word, one of the tests' answers too."""
    known = set().union(*(_shingles(text.answer) for text in tests))
    return [text for text in texts if len((own := _shingles(text.answer)) & known) < 0.8 * len(own)]


def _shingles(tokens: Sequence[int]) -> set[bytes]:
    """All pieces of 16 tokens."""
    data, size = _bytes(tokens), 4 * 16
    return {data[i : i + size] for i in range(0, max(1, len(data) - size + 1), 4)}


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def num_looping(tokens: Sequence[int], window: int = 64, longest: int = 24) -> int:
    """How many tokens end a stretch of `window` tokens that repeats with a period of at most
    `longest`.

    Small models loop at temperature 0, which flatters every text speculator.
    O(len(tokens) * longest).
    """
    ids, looping = np.asarray(tokens, np.int32), np.zeros(len(tokens), np.bool_)
    for period in range(1, min(longest, len(ids) - 1) + 1):
        same = np.concatenate((np.zeros(period, np.int32), ids[period:] == ids[:-period]))
        ends = np.cumsum(same)
        run = window - period
        if len(ids) >= run:
            before = np.concatenate((np.zeros(run, ends.dtype), ends))[: len(ids)]
            looping |= ends - before == run
    return int(looping.sum())


def counts(texts: Sequence[RecordedText]) -> Mapping[str, int]:
    """Counts of texts for a report."""
    return {
        "conversations": len({text.conversation for text in texts}),
        "texts": len(texts),
        "tokens": sum(len(text.answer) for text in texts),
    }

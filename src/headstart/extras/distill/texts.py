"""Recorded texts: an SQLite file in a folder of their own, and what they are split into.

Texts are token ids, because drafts are tokens, with all on which the choice of a token depends.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from headstart.types.errors import ConfigError
from headstart.types.sampling_params import LogitBias, SamplingParams

FILE, TRAINING = "texts.sqlite", "training"  # in the folder
TABLES = (
    "CREATE TABLE IF NOT EXISTS texts (recorded REAL, model TEXT, tenant TEXT, prompt BLOB, "
    "answer BLOB, sampling TEXT)",
    "CREATE INDEX IF NOT EXISTS by_time ON texts (recorded)",
    "CREATE INDEX IF NOT EXISTS by_tenant ON texts (tenant, recorded)",
    # draft models made from these texts
    "CREATE TABLE IF NOT EXISTS drafters (path TEXT, tenant TEXT, first REAL, last REAL)",
)


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

    def row(self) -> tuple[object, ...]:
        """The text as a row of the table."""
        default = SamplingParams()
        sampling = {
            one.name: value
            for one in fields(SamplingParams)
            if (value := getattr(self.sampling, one.name)) != getattr(default, one.name)
        }
        if "logit_bias" in sampling:
            sampling["logit_bias"] = list(sampling["logit_bias"].items())
        tokens = map(_bytes, (self.prompt, self.answer))
        return self.recorded, self.model, self.tenant, *tokens, json.dumps(sampling)

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> RecordedText:
        """The text of a row.

        Raises:
            TypeError, ValueError: another version wrote it, with other parameters.
        """
        recorded, model, tenant, *tokens, sampling = row
        prompt, answer = (array("i", ids).tolist() for ids in tokens)
        found = json.loads(sampling)
        if "logit_bias" in found:
            found["logit_bias"] = LogitBias(dict(found["logit_bias"]))
        for name in ("samplers", "dry_sequence_breakers"):
            if name in found:
                found[name] = tuple(found[name])
        return cls(
            recorded=recorded, model=model, tenant=tenant, prompt=prompt, answer=answer,
            sampling=SamplingParams(**found),
        )  # fmt: skip


@contextmanager
def opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """The texts of a folder, made unless they are there, in one transaction.

    Raises:
        ConfigError: they cannot be read or written.
    """
    try:
        # only for this user; SQLite gives its other files the same permissions
        os.close(os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(sqlite3.connect(folder / FILE, timeout=60.0)) as database, database:
            database.execute("PRAGMA auto_vacuum = FULL")  # the file shrinks with its texts
            database.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
            for table in TABLES:
                database.execute(table)
            yield database
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{folder / FILE} cannot be used: {error}; name another folder") from None


def keep(
    folder: Path, texts: Iterable[RecordedText], max_bytes: float = inf, max_seconds: float = inf
) -> None:
    """Add texts to those of a folder, and make room; several processes may write to it.

    Raises:
        ConfigError: they cannot be written.
    """
    with opened(folder) as database:
        rows = (text.row() for text in texts)
        database.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)", rows)
        make_room(database, max_bytes, max_seconds)


def make_room(database: sqlite3.Connection, max_bytes: float, max_seconds: float) -> None:
    """Delete texts that are too old; and where all take too much, the oldest of the tenant that
    has most, until a sixteenth is free.
    """
    database.execute("DELETE FROM texts WHERE recorded < ?", (time.time() - max_seconds,))
    if _num_bytes(database) <= max_bytes:
        return
    size = "length(prompt) + length(answer)"
    held = dict(database.execute(f"SELECT tenant, sum({size}) FROM texts GROUP BY tenant"))
    while held and _num_bytes(database) > max_bytes * 15 // 16:
        most = max(held, key=held.__getitem__)
        oldest = "FROM texts WHERE tenant = ? ORDER BY recorded LIMIT 1"
        found = database.execute(f"SELECT rowid, {size} {oldest}", (most,)).fetchone()
        if found is None:
            del held[most]
            continue
        database.execute("DELETE FROM texts WHERE rowid = ?", found[:1])
        held[most] -= found[1]


def _num_bytes(database: sqlite3.Connection) -> int:
    pages = [
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    ]
    return int((pages[0] - pages[1]) * pages[2])


def purge(folder: Path, tenants: Collection[str] | None, before: float) -> tuple[int, list[str]]:
    """Delete texts of these tenants (None: of all) that were recorded before a time.

    Returns their number, and the draft models that were made from some of them.
    """
    if not (folder / FILE).exists():
        return 0, []
    chosen, values = "recorded < ?", [before, *(tenants or ())]
    if tenants is not None:
        chosen += f" AND texts.tenant IN ({','.join('?' * len(tenants))})"
    with opened(folder) as database:
        learned = (
            "SELECT DISTINCT path FROM drafters JOIN texts ON drafters.tenant = texts.tenant AND "
            f"recorded BETWEEN first AND last WHERE {chosen}"
        )
        made = [path for (path,) in database.execute(learned, values) if Path(path).exists()]
        num_deleted = database.execute(f"DELETE FROM texts WHERE {chosen}", values).rowcount
    if num_deleted and (folder / TRAINING).exists():
        shutil.rmtree(folder / TRAINING)
    return num_deleted, made


def training_folder(folder: Path) -> Path:
    """Make the folder in which a training keeps what it needs to go on; it reveals the texts."""
    (made := folder / TRAINING).mkdir(mode=0o700, exist_ok=True)
    return made


def note_drafter(folder: Path, path: Path, base: Path, texts: Sequence[RecordedText]) -> None:
    """Remember that a draft model was made from texts, and from those that its base was made from,
    so that a purge can name it.
    """
    own, times = str(path.resolve()), [text.recorded for text in texts]
    rows = [(own, one, min(times), max(times)) for one in {text.tenant for text in texts}]
    inherited = "INSERT INTO drafters SELECT ?, tenant, first, last FROM drafters WHERE path = ?"
    with opened(folder) as database:
        database.execute("DELETE FROM drafters WHERE path = ?", (own,))
        database.execute(inherited, (own, str(base.resolve())))
        database.executemany("INSERT INTO drafters VALUES (?, ?, ?, ?)", rows)


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
    if (folder / FILE).exists():
        with opened(folder) as database:
            rows = "SELECT * FROM texts WHERE model = ? ORDER BY recorded"
            for row in database.execute(rows, (model,)):
                if tenants is None or row[2] in tenants:
                    with suppress(TypeError, ValueError):
                        texts.setdefault(row[2:5], RecordedText.of(row))
    # the first token of an answer comes with the prompt: no draft is for it
    longer = [one for one in texts.values() if len(one.answer) > 1]
    kept = [one for one in longer if num_looping(one.answer) <= 0.5 * len(one.answer)]
    if not kept:
        raise ConfigError(
            f"--texts {folder} has no text of this model; start headstart serve with the same "
            "model and --record-texts, and use it for some days"
        )
    return _by_conversation(kept)


def _by_conversation(texts: Sequence[RecordedText]) -> list[RecordedText]:
    """Number the texts; sorted, a prompt comes after all those that it begins with."""
    order = sorted((one.tenant, _bytes(one.prompt), number) for number, one in enumerate(texts))
    numbers, begun = list(range(len(texts))), list[tuple[str, bytes, int]]()
    for tenant, prompt, number in order:
        while begun and not (begun[-1][0] == tenant and prompt.startswith(begun[-1][1])):
            begun.pop()
        before = next((one for _, _, one in reversed(begun) if one < number), number)
        numbers[number] = numbers[before]
        begun.append((tenant, prompt, number))
    return [replace(one, conversation=n) for one, n in zip(texts, numbers, strict=True)]


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
    return array("i", tokens).tobytes()


def num_looping(tokens: Sequence[int]) -> int:
    """How many tokens end a stretch of 64 tokens that repeats with a period of at most 24.

    Small models loop at temperature 0, which flatters every text speculator.
    """
    ids, looping = np.asarray(tokens, np.int32), np.zeros(len(tokens), np.bool_)
    for period in range(1, min(24, len(ids) - 1) + 1):
        same = np.concatenate((np.zeros(period, np.int32), ids[period:] == ids[:-period]))
        ends = np.cumsum(same)
        run = 64 - period
        if len(ids) >= run:
            before = np.concatenate((np.zeros(run, ends.dtype), ends))[: len(ids)]
            looping |= ends - before == run
    return int(looping.sum())


def counts(texts: Sequence[RecordedText]) -> dict[str, int]:
    """Counts of texts for a report."""
    return {
        "conversations": len({text.conversation for text in texts}),
        "texts": len(texts),
        "tokens": sum(len(text.answer) for text in texts),
    }

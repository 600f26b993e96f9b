"""The file of a vocabulary pair: used when whole, built again when not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.unit.vocabulary import real

from headstart.vocabulary import cache
from headstart.vocabulary.cache import PairData, cache_path, load_or_build
from headstart.vocabulary.table import VocabTable, read_table


@pytest.fixture(scope="module")
def tables() -> tuple[VocabTable, VocabTable]:
    return read_table(real.vocab("demo-target")), read_table(real.vocab("demo-draft-other"))


def is_same(left: PairData, right: PairData) -> bool:
    a, b = left.comparison, right.comparison
    arrays = ((a.to_draft, b.to_draft), (a.to_target, b.to_target), (left.order, right.order))
    same = all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays)
    return same and (a.mode, a.special_differences) == (b.mode, b.special_differences)


@pytest.fixture
def num_built(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    built: list[None] = []
    build = cache._build

    def counting(target: VocabTable, draft: VocabTable) -> PairData:
        built.append(None)
        return build(target, draft)

    monkeypatch.setattr(cache, "_build", counting)
    return built


def test_second_start_reads_what_the_first_wrote(
    tmp_path: Path, tables: tuple[VocabTable, VocabTable], num_built: list[None]
) -> None:
    first = load_or_build(tmp_path / "new", *tables)
    second = load_or_build(tmp_path / "new", *tables)
    assert is_same(first, second)
    assert len(num_built) == 1
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".npz"]


@pytest.mark.parametrize(
    "damage", ["flipped", "truncated", "empty", "text", "pickle", "altered", "stale"]
)
def test_damaged_or_stale_file_is_built_again(
    tmp_path: Path, tables: tuple[VocabTable, VocabTable], num_built: list[None], damage: str
) -> None:
    path = cache_path(tmp_path, *tables)
    first = load_or_build(tmp_path, *tables)
    raw = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:])
    elif damage == "pickle":
        np.savez(path, to_draft=np.array([{}], object))
    elif damage == "altered":  # a whole file, but not what was stored
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        np.savez(path, **{**arrays, "order": arrays["order"][::-1]})
    elif damage == "stale":
        other = dataclasses.replace(tables[0], digest="0" * 64)
        load_or_build(tmp_path, other, tables[1])
        cache_path(tmp_path, other, tables[1]).replace(path)
        num_built.clear()
        num_built.append(None)
    else:
        path.write_bytes(
            {"truncated": raw[: len(raw) // 2], "empty": b"", "text": b"not a zip file"}[damage]
        )
    assert is_same(load_or_build(tmp_path, *tables), first)
    assert len(num_built) == 2
    assert is_same(load_or_build(tmp_path, *tables), first)
    assert len(num_built) == 2


def test_folder_that_cannot_be_written_costs_only_the_cache(
    tmp_path: Path, tables: tuple[VocabTable, VocabTable]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert load_or_build(tmp_path / "file", *tables).comparison.num_shared > 0


def test_digest_changes_with_bytes_and_marks() -> None:
    digests = {
        read_table(real.vocab(name)).digest
        for name in ("demo-target", "demo-draft", "demo-draft-other")
    }
    assert len(digests) == 2

"""What is recorded, whose, for how long, and that a purge leaves nothing."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from array import array
from dataclasses import replace
from math import inf
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.harness import Model, make_requests, make_scheduler, run, submit_all

from headstart.app.cli.main import main
from headstart.app.demo import TARGET, path
from headstart.config import RecordingConfig
from headstart.extras.distill.recorder import TextRecorder
from headstart.extras.distill.texts import (
    FILE,
    RecordedText,
    keep,
    make_room,
    note_drafter,
    num_looping,
    opened,
    purge,
    read_texts,
    split,
    training_folder,
    without_duplicates,
)
from headstart.scheduler.scheduler import Scheduler
from headstart.structures.model_id import ModelId
from headstart.structures.tenants import namespace_of_key
from headstart.types.errors import ConfigError
from headstart.types.request import Request
from headstart.types.sampling_params import LogitBias, SamplingParams

KEY = namespace_of_key(b"secret")
MODEL = ModelId.of(path(TARGET)).digest
LIMIT, LONG = 200_000, list(range(4000))  # bytes of all texts; an answer of 16,000


def recorded(folder: Path, **settings: str) -> tuple[TextRecorder, Scheduler]:
    recorder = TextRecorder(RecordingConfig(record_texts=str(folder), **settings), path(TARGET))
    scheduler = make_scheduler(Model())
    scheduler.readers.append(recorder.read)
    return recorder, scheduler


def record(folder: Path, requests: list[Request], **settings: str):
    recorder, scheduler = recorded(folder, **settings)
    answers = run(scheduler, requests)
    recorder.close()
    return answers


def test_a_text_comes_back_with_all_that_chose_its_tokens(tmp_path: Path) -> None:
    requests = make_requests(6)
    special = SamplingParams(seed=7, logit_bias=LogitBias({3: -1.5}), dry_sequence_breakers=("a",))
    requests[0] = replace(requests[0], sampling=special)
    answers = record(tmp_path, requests)
    found = {tuple(text.prompt): text for text in read_texts(tmp_path, MODEL)}
    assert len(found) == 6
    for request in requests:
        text = found[tuple(request.prompt)]
        assert list(text.answer) == answers[request.request_id].tokens
        assert text.sampling == request.sampling


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    record(tmp_path / "texts", make_requests(1))
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "texts").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "texts").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("namespace", "store", "tenants", "is_recorded"),
    [
        ("", None, None, True),
        ("", False, "all", False),
        (KEY, None, None, False),
        (KEY, True, None, True),
        (KEY, None, "secret,other", True),
        (KEY, None, "other", False),
        (KEY, None, "all", True),
        (KEY, False, "secret", False),
    ],
)
def test_a_tenant_or_its_request_has_to_agree(tmp_path, namespace, store, tenants, is_recorded):
    request = replace(make_requests(1)[0], namespace=namespace, store=store)
    record(tmp_path, [request], record_tenants=tenants)
    assert count(tmp_path) == is_recorded


def test_a_cancelled_answer_is_not_recorded(tmp_path: Path) -> None:
    recorder, scheduler = recorded(tmp_path)
    request = make_requests(2)[1]
    submit_all(scheduler, [request], 8)
    scheduler.cancel(request.request_id)
    scheduler.finish()
    recorder.close()
    assert count(tmp_path) == 0


def test_an_answer_about_an_image_is_not_recorded(tmp_path: Path) -> None:
    recorder, scheduler = recorded(tmp_path)
    submit_all(scheduler, make_requests(2))
    with_image, _ = scheduler.waiting
    with_image.media = ((0, Mock()),)  # as if one had been read
    run(scheduler)
    recorder.close()
    assert [one.prompt for one in read_texts(tmp_path, MODEL)] == [list(make_requests(2)[1].prompt)]


def count(folder: Path) -> int:
    """Texts of all models and tenants."""
    with opened(folder) as database:
        (number,) = database.execute("SELECT count(*) FROM texts").fetchone()
    return int(number)


def text(recorded: float, prompt: list[int], answer: list[int], tenant: str = "") -> RecordedText:
    spoken = {"prompt": prompt, "answer": answer, "sampling": SamplingParams()}
    return RecordedText(recorded=recorded, model=MODEL, tenant=tenant, **spoken)


def test_the_oldest_texts_make_room_and_old_ones_are_deleted(tmp_path: Path) -> None:
    now = time.time()
    for number in range(40):
        keep(tmp_path, [text(now + 1000 * (number - 40), [number], LONG)], LIMIT)
    assert LIMIT / 2 < (tmp_path / FILE).stat().st_size <= LIMIT + 20_000
    first = read_texts(tmp_path, MODEL)
    assert first[-1].prompt == [39]
    assert first[0].prompt != [0]
    keep(tmp_path, [], LIMIT, now - first[0].recorded - 500)
    assert [one.prompt for one in read_texts(tmp_path, MODEL)] == [one.prompt for one in first[1:]]


def test_a_purge_leaves_nothing_of_a_tenant_and_names_what_learned_from_it(tmp_path, capsys):
    for number in range(9):
        tenant = KEY if number % 3 else ""
        keep(tmp_path, [text(100.0 + number, [number], [1, 2, number], tenant)])
    own = [one for one in read_texts(tmp_path, MODEL) if one.tenant == KEY]
    names, base, others = ("own", "public", "cut"), tmp_path / "base.gguf", [text(1.0, [1], [1])]
    own_path, public, cut = (tmp_path / f"{name}.gguf" for name in names)
    for made in (own_path, public, cut):
        made.touch()
    note_drafter(tmp_path, own_path, base, own)
    note_drafter(tmp_path, tmp_path / "deleted.gguf", base, own)
    note_drafter(tmp_path, public, base, others)
    note_drafter(tmp_path, cut, own_path, others)
    assert main(["distill", "purge", "--texts", str(tmp_path), "--tenants", "secret"]) == 0
    out = capsys.readouterr().out
    assert "deleted 6 texts" in out
    assert "own.gguf" in out
    assert "cut.gguf" in out
    assert "public.gguf" not in out
    assert "deleted.gguf" not in out
    assert [one.tenant for one in read_texts(tmp_path, MODEL)] == [""] * 3
    assert purge(tmp_path, None, 1e12)[0] == 3
    assert count(tmp_path) == 0
    with pytest.raises(ConfigError, match="has no text of this model"):
        read_texts(tmp_path, MODEL)


def test_what_was_purged_is_nowhere_in_the_file_and_new_texts_are_recorded(tmp_path: Path) -> None:
    secret = [7_654_321, 1_234_567]
    keep(tmp_path, [text(100.0, [1], secret)])
    assert array("i", secret).tobytes() in (tmp_path / FILE).read_bytes()
    folder = training_folder(tmp_path)
    (folder / "best.pt").write_bytes(b"what came in these texts")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    purge(tmp_path, None, 1e12)
    assert not folder.exists()
    assert array("i", secret).tobytes() not in (tmp_path / FILE).read_bytes()
    keep(tmp_path, [text(101.0, [4], [5, 6])])
    assert [one.prompt for one in read_texts(tmp_path, MODEL)] == [[4]]


def test_deleted_texts_give_their_room_on_the_disk_back(tmp_path: Path) -> None:
    keep(tmp_path, [])
    empty = (tmp_path / FILE).stat().st_size
    keep(tmp_path, [text(100.0 + number, [number], LONG) for number in range(20)])
    purge(tmp_path, None, 1e12)
    assert (tmp_path / FILE).stat().st_size <= empty + 8192


def test_a_text_with_parameters_of_another_version_is_left_out(tmp_path: Path) -> None:
    keep(tmp_path, [text(100.0 + number, [number], [1, 2]) for number in range(3)])
    with opened(tmp_path) as database:
        database.execute("UPDATE texts SET sampling = '{\"gone\": 1}' WHERE recorded = 101")
    assert [one.prompt for one in read_texts(tmp_path, MODEL)] == [[0], [2]]


def test_to_make_room_no_texts_of_other_tenants_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as database:
        short, long = b"0" * 4, b"0" * 400
        older = [(float(i), MODEL, "quiet", short, short, "{}") for i in range(2000)]
        newer = [(1e6 + i, MODEL, "loud", short, long, "{}") for i in range(200)]
        database.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)", older + newer)
    steps: list[None] = []  # of a thousand instructions of SQLite
    with opened(tmp_path) as database:
        database.set_progress_handler(lambda: steps.append(None), 1000)
        make_room(database, (tmp_path / FILE).stat().st_size - 1, inf)
    assert count(tmp_path) < 2200
    assert len(steps) < 100


def test_conversations_duplicates_and_loops_are_found(tmp_path: Path) -> None:
    free = [int(n * n * 7919 % 4001) for n in range(100)]
    rows = [
        ([1, 2], free),
        ([1, 2, *free, 3], free[50:]),  # goes on
        ([9, 9], [5, 6, 7]),
        ([9, 9], [5, 6, 7]),  # the same again
        ([8], [4] * 200),  # loops
        ([1, 2, *free, 3, 4], [1, 2]),  # of another tenant
        ([7], [1]),  # one token, for which there is no draft
    ]
    for number, (prompt, answer) in enumerate(rows):
        keep(tmp_path, [text(100.0 + number, prompt, answer, KEY if number == 5 else "")])
    found = read_texts(tmp_path, MODEL)
    assert [one.conversation for one in found] == [0, 0, 2, 3]
    earlier, later = split(found)
    assert {one.conversation for one in earlier} & {one.conversation for one in later} == set()
    assert max(one.recorded for one in earlier) < min(one.recorded for one in later)
    tests = [text(200.0, [1], free)]
    assert without_duplicates(found, tests) == found[2:]


def test_looping_is_counted_token_by_token() -> None:
    def slowly(tokens: list[int]) -> int:
        looping, runs = 0, [0] * 25
        for i, token in enumerate(tokens):
            for period in range(1, 25):
                same = i >= period and tokens[i - period] == token
                runs[period] = runs[period] + 1 if same else 0
            looping += any(runs[period] >= 64 - period for period in range(1, 25))
        return looping

    looped = list(range(30)) + [1, 2, 3] * 40 + list(range(50)) + [7] * 70
    assert num_looping(looped) == slowly(looped) > 0
    assert num_looping([1, 2]) == num_looping([]) == 0


def test_a_server_that_does_not_record_never_imports_it() -> None:
    code = (
        "import sys; from headstart.app import assemble; from headstart.app.cli import serve; "
        "from headstart.scheduler import scheduler; "
        "assert not [name for name in sys.modules if 'distill' in name]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_tenant_that_records_much_has_its_own_texts_deleted_first(tmp_path: Path) -> None:
    keep(tmp_path, [text(1.7e9, [7], LONG, "quiet")])
    for number in range(40):
        keep(tmp_path, [text(1.7e9 + number, [number], LONG, "loud")], LIMIT)
    assert (tmp_path / FILE).stat().st_size <= LIMIT + 20_000
    tenants = [one.tenant for one in read_texts(tmp_path, MODEL)]
    assert tenants.count("quiet") == 1
    assert 6 < tenants.count("loud") < 40

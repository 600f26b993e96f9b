"""A cache that is full is everyday business: nobody fails, and the log says it once."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.architectures import tiny_hybrid
from tests.models import tiny_llama
from tests.real.answers import Setting, generate, open_setting
from tests.real.support import byte_requests, without_draft

from headstart.engine import library


@pytest.mark.parametrize("write", [tiny_llama, tiny_hybrid])
def test_a_full_cache_is_said_once_and_every_request_ends_well(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "_has_told_full", False)
    setting = Setting("ngram-cache", 4, num_slots=4, context=256, exact=False)
    scheduler = open_setting(setting, without_draft(write(tmp_path / "tiny.gguf")))
    endless = [
        replace(r, max_tokens=120, sampling=replace(r.sampling, ignore_eos=True))
        for r in byte_requests(6)
    ]
    with caplog.at_level(logging.INFO, "headstart"):
        results = generate(scheduler, endless)
    assert scheduler.counters.preemptions > 0
    assert [r.error for r in results.values()] == [""] * 6
    assert [len(r.tokens) for r in results.values()] == [120] * 6
    from_libllama = [r for r in caplog.records if r.name == "headstart.libllama"]
    assert [r.levelno for r in from_libllama] == [logging.INFO]
    assert "the cache is full" in from_libllama[0].message


def test_other_warnings_and_errors_of_libllama_stay_loud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "headstart"):
        for level, line in (
            (3, b"decode: something is odd\n"),
            (4, b"llama_decode: something broke\n"),
        ):
            library._on_log(level, line, None)
        library._on_log(4, b"init_batch: failed to prepare attention ubatches\n", None)
    assert [r.levelno for r in caplog.records if "something" in r.message] == [
        logging.WARNING,
        logging.ERROR,
    ]
    assert library.take_errors() == "something broke"

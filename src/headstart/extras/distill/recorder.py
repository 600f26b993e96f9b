"""Records prompts and answers: a reader of step records that writes in a thread.

What may be recorded was decided by the flags and by the request (`store`). Texts whose tokens
depend on more than prompt, parameters and seed are left out: those under a constraint, with
adapters, with images, with a limit of thoughts, and those that lost tokens to a context shift.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from headstart.config import RecordingConfig
from headstart.config.fields import listed
from headstart.extras.distill.texts import RecordedText, keep
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import End, StepRecord
from headstart.structures.model_id import ModelId
from headstart.structures.system import start_threads
from headstart.structures.tenants import namespaces_of, tenant_of
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)


class TextRecorder:
    """A reader of step records. Files are written in a thread that ends after its last text."""

    def __init__(self, config: RecordingConfig, target: Path) -> None:
        """Make the folder, or delete from it what is too old.

        Raises:
            ConfigError: it cannot be written.
        """
        assert config.record_texts is not None
        folder, seconds = Path(config.record_texts), config.record_days * 86_400.0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--record-texts {folder} cannot be written: {error.strerror}; name another folder"
            ) from None
        self._keep = partial(keep, folder, max_bytes=config.record_mb * 2**20, max_seconds=seconds)
        self._keep([])
        names = listed(config.record_tenants)
        self._tenants = None if "all" in names else namespaces_of(names) | {""}
        self._model = ModelId.of(target).digest
        self._answers: dict[int, list[int]] = {}  # by number of the sequence
        # joined when the process ends
        self._writer = start_threads("recorder")
        self._room = threading.Semaphore(256)  # texts that may wait for the disk
        self._has_failed = False

    def read(self, record: StepRecord) -> None:
        """Add the tokens of a step, and hand over the texts that are complete."""
        for result in record.results:
            sequence = result.sequence
            if result.emitted and self._may_store(sequence):
                self._answers.setdefault(sequence.number, []).extend(result.emitted)
        for end in record.ended:
            answer = self._answers.pop(end.sequence.number, None)
            if answer is not None and _is_whole(end):
                self._hand_over(end.sequence, answer)

    def close(self) -> None:
        """Wait until all pending texts are written."""
        self._writer.shutdown()

    def _may_store(self, sequence: Sequence) -> bool:
        request, tenants = sequence.request, self._tenants
        if request.store is False or request.constraint or request.adapters or request.thoughts:
            return False
        return request.store is True or tenants is None or tenant_of(request.namespace) in tenants

    def _hand_over(self, sequence: Sequence, answer: list[int]) -> None:
        request = sequence.request
        text = RecordedText(
            recorded=time.time(),
            model=self._model,
            tenant=tenant_of(request.namespace),
            prompt=request.prompt,
            answer=answer,
            sampling=request.sampling,
        )
        if self._room.acquire(blocking=False):
            self._writer.submit(self._keep, [text]).add_done_callback(self._note)
        elif not self._has_failed:
            self._has_failed = True
            log.warning("--record-texts: the disk is too slow; some texts are not recorded")

    def _note(self, written: Future[None]) -> None:
        self._room.release()
        error = written.exception()
        if error is not None and not self._has_failed:
            self._has_failed = True  # logged once
            log.error("--record-texts: texts are not recorded: %s", error)


def _is_whole(end: End) -> bool:
    sequence = end.sequence
    is_text = not (sequence.media or sequence.num_dropped)
    return is_text and end.reason in ("eos", "word", "length")

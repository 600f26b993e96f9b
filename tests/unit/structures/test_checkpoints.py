"""States of sequences as bytes."""

from __future__ import annotations

import weakref

import numpy as np

from headstart.structures.checkpoints import pack, unpack
from headstart.types import Checkpoint, SavedState


def test_a_checkpoint_read_from_a_file_does_not_keep_the_whole_file_in_memory() -> None:
    saved = SavedState(b"state" * 100, (Checkpoint(3, b"three"), Checkpoint(7, b"seven")), b"text")
    file = np.frombuffer(b"".join(pack(saved)), np.uint8).copy()
    is_held = weakref.ref(file)
    read = unpack(memoryview(file))
    assert read is not None
    assert (read.state, read.text) == (saved.state, saved.text)
    assert [(one.length, one.data) for one in read.checkpoints] == [(3, b"three"), (7, b"seven")]
    del file
    assert is_held() is None

"""Whether a device computes by itself is found out from the last decodes."""

from __future__ import annotations

from headstart.engine.asynchrony import NUM_DECODES, Asynchrony


def observe(
    asynchrony: Asynchrony, decode_ms: float, wait_ms: float, aside_ms: float = 0.0
) -> None:
    for _ in range(NUM_DECODES):
        asynchrony.observe(0.001 * decode_ms, 0.001 * aside_ms, 0.001 * wait_ms)


def judged(decode_ms: float, wait_ms: float, num_slow: int = 0) -> Asynchrony:
    """After decodes of which the first few take long to hand over, as a device's first ones do."""
    asynchrony = Asynchrony()
    for turn in range(NUM_DECODES):
        assert not asynchrony.is_proven
        asynchrony.observe(0.001 * (500.0 if turn < num_slow else decode_ms), 0.0, 0.001 * wait_ms)
    return asynchrony


def test_a_device_is_waited_for_behind_llama_decode() -> None:
    assert judged(0.6, 7.0).is_proven
    assert judged(0.6, 7.0, num_slow=2).is_proven


def test_the_processor_is_waited_for_in_llama_decode() -> None:
    assert not judged(7.0, 0.002).is_proven
    assert not judged(0.2, 0.004).is_proven


def test_later_decodes_overrule_the_first_ones() -> None:
    asynchrony = judged(0.6, 7.0)
    observe(asynchrony, 7.0, 0.002, aside_ms=0.5)
    assert not asynchrony.is_proven
    observe(asynchrony, 0.6, 4.0, aside_ms=3.0)
    assert asynchrony.is_proven


def test_a_device_that_finished_while_the_caller_was_busy_proves_nothing() -> None:
    for asynchrony in (judged(0.6, 7.0), judged(7.0, 0.002)):
        was_proven = asynchrony.is_proven
        observe(asynchrony, 0.6, 0.002, aside_ms=3.0)
        assert asynchrony.is_proven is was_proven

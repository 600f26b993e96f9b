"""Makes an engine's rows independent of the other rows in a decode, by widths that agree."""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter

from headstart.engine.context import LlamaEngine
from headstart.scheduler.widths import CERTAIN_ROWS, WidthComparison
from headstart.types import CacheKind
from headstart.types.errors import ConfigError
from headstart.types.widths import MOST_SHORT, WidthClasses

log = logging.getLogger(__name__)


def make_exact(engine: LlamaEngine, *, is_repacked: bool = False) -> WidthClasses | None:
    """Let an engine decode only in widths that agree; returns the comparison.

    None: one row does not agree with several, or only if it is padded to many, because kernels for
    repacked weights sum in another order for a few rows. Without repacking it may.

    Raises:
        ConfigError: there are no such widths, not even with the CPU's reference kernels; or
            flash attention is off, and the model has windows.
    """
    if engine.window and not engine.params.flash_attn_type:
        raise ConfigError(
            "--exact needs flash attention with a model of windows (here of "
            f"{engine.window} tokens): without, sums depend on the cells of a window, and one that "
            "comes back from main memory has others; leave out --flash-attn off"
        )
    sequences = range(min(engine.num_sequences, 8))
    adapters = (1.0,) * len(engine.adapters.describe())
    for is_reference in (False,) if is_repacked else (False, True):
        if is_reference:
            engine.use_reference_kernels()
        comparison = WidthComparison(engine, sequences, perf_counter, num_rows=CERTAIN_ROWS)
        engine.adapters.use(adapters)  # requests may: their matrices have kernels of their own
        classes = comparison.run()
        engine.adapters.use(())
        assert classes is not None, "nobody interrupts it"
        # several slots cannot take back padding of recurrent states: one is to have their kernels
        can_pad = engine.cache_kind is CacheKind.CUT or is_reference
        widths = classes.choose(engine.max_padding if can_pad else 0)
        if widths and (widths.pads_little or not is_repacked):
            engine.widths, engine.is_alone = widths, classes.is_alone
            engine.prompt_widths = widths
            if engine.cache_kind is CacheKind.CUT:  # others cannot take padding back
                engine.prompt_widths = classes.choose_for_prompts(widths)
            if engine.cache_kind is CacheKind.ROLLBACK:  # of one decode, with all that pads it
                sizes = range(1, 1 + min(MOST_SHORT, widths.most))
                fitting = [n for n in sizes if widths.fit(n) - 1 <= engine.max_padding]
                engine.max_rollback = min(engine.max_rollback, len(fitting) - 1)
            log.info(
                "exact: decodes of %s rows, prompts of %s (widths that agree: %s%s); padding makes "
                "one row take %.2f times as long", widths, engine.prompt_widths,
                classes, ", reference kernels" * is_reference, classes.cost(widths),
            )  # fmt: skip
            return replace(classes, is_exact=True)
    if is_repacked:
        log.info("exact: one row agrees with too few (%s); loading weights unpacked", classes)
        return None
    ways = ["drop the flag"]
    if engine.num_sequences > 1:
        ways.append("try --parallel 1")
    elif not (engine.max_padding or engine.params.n_rs_seq):
        ways.append("leave out --spec off: what takes drafts back takes padding back")
    # else two rows of F16 or F32, as the gates of experts, are summed in another order than one
    ways.append("on a processor build libllama with CMAKE_ARGS=-DGGML_LLAMAFILE=OFF")
    raise ConfigError(
        "--exact is not possible with this model on this machine: the numbers of rows that agree "
        f"are {classes}, and its cache can take back {engine.max_padding} rows; "
        + ", or ".join(ways)
    )

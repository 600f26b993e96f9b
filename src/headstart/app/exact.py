"""Makes an engine's rows independent of the other rows in a decode, by widths that agree."""

from __future__ import annotations

import logging
from dataclasses import replace
from math import inf
from time import perf_counter

from headstart.engine.context import LlamaEngine
from headstart.scheduler.widths import CERTAIN_ROWS, LEAST_ROWS, WidthComparison
from headstart.types import CacheKind
from headstart.types.errors import ConfigError
from headstart.types.widths import MOST_SHORT, WidthClasses, Widths

log = logging.getLogger(__name__)


def make_exact(engine: LlamaEngine, *, is_repacked: bool = False) -> WidthClasses | None:
    """Let an engine decode only in widths that agree; returns the comparison.

    With a CPU's usual kernels one row often agrees with no other width, with its reference kernels
    mostly all widths agree, and narrow ones are as fast. So answers have these where that pads
    less; prompts have the usual ones, unless they agree. A GPU has only one kind.

    None: one row does not agree with several, or only if it is padded to many, because kernels for
    repacked weights sum in another order for a few rows. Without repacking it may.

    Raises:
        ConfigError: there are no such widths; or flash attention is off, and the model has
            windows.
    """
    if engine.window and not engine.params.flash_attn_type:
        raise ConfigError(
            "--exact needs flash attention with a model of windows (here of "
            f"{engine.window} tokens): without, sums depend on the cells of a window, and one that "
            "comes back from main memory has others; leave out --flash-attn off"
        )
    is_cut = engine.cache_kind is CacheKind.CUT
    engine.use_reference_kernels(is_on=True)
    reference, classes = _compare(engine)
    engine.use_reference_kernels(is_on=False)
    widths = classes.choose(engine.max_padding)
    if widths is not None:
        widths = widths._replace(is_reference=True)
    if is_repacked and not (widths and widths.pads_little):
        log.info("exact: one row agrees with too few (%s); loading weights unpacked", classes)
        return None
    prompt_widths = widths
    if is_cut or _order(widths) > _order(Widths((1, MOST_SHORT))):
        usual, others = _compare(engine)
        # several slots cannot take back padding of recurrent states: one is to have their kernels
        own = others.choose(engine.max_padding if is_cut else 0)
        widest = others.choose_for_prompts()
        if own and _order(own) <= _order(widths):
            widths, classes = own, others
            prompt_widths = widest if is_cut else own
        elif widths and is_cut and widest.most > MOST_SHORT:
            both = usual.rows.get(widest.most, ()), reference.rows.get(widths.most, ())
            if any(one != other for one, other in zip(*both, strict=False)):
                prompt_widths = widest
    if widths is None or prompt_widths is None:
        raise _refusal(engine, classes)
    engine.widths, engine.prompt_widths = widths, prompt_widths
    engine.width_costs = None if classes.is_alone else _costs(classes)
    if engine.cache_kind is CacheKind.ROLLBACK:  # of one decode, with all that pads it
        sizes = range(1, 1 + min(MOST_SHORT, widths.most))
        fitting = [n for n in sizes if widths.fit(n) - 1 <= engine.max_padding]
        engine.max_rollback = min(engine.max_rollback, len(fitting) - 1)
    log.info(
        "exact: decodes of %s rows, prompts of %s; widths that agree: %s",
        widths, prompt_widths, classes,
    )  # fmt: skip
    return replace(classes, is_exact=True)


def _compare(engine: LlamaEngine) -> tuple[WidthComparison, WidthClasses]:
    """Compare widths with all adapters, which requests may use: they have kernels of their own."""
    sequences = range(min(engine.num_sequences, 8))
    num_params = engine.model.info().num_params
    # with few weights, rows of different kernels may agree by chance, and more are compared
    num_rows = CERTAIN_ROWS if num_params < 100_000_000 else LEAST_ROWS
    comparison = WidthComparison(engine, sequences, perf_counter, num_rows=num_rows)
    engine.adapters.use((1.0,) * len(engine.adapters.describe()))
    classes = comparison.run()
    engine.adapters.use(())
    assert classes is not None, "nobody interrupts it"
    return comparison, classes


def _costs(classes: WidthClasses) -> dict[int, float]:
    """Milliseconds by width; one slower than a wider decode was disturbed, and is as fast."""
    costs, least = dict[int, float](), inf
    for width, milliseconds in sorted(classes.milliseconds, reverse=True):
        costs[width] = least = min(least, milliseconds)
    return costs


def _order(widths: Widths | None) -> tuple[float, bool]:
    """Less is better: little padding, then room for drafts."""
    return (widths.sizes[0], widths.most < MOST_SHORT) if widths else (inf, True)


def _refusal(engine: LlamaEngine, classes: WidthClasses) -> ConfigError:
    ways = ["drop the flag"]
    if engine.num_sequences > 1:
        ways.append("try --parallel 1")
    elif not (engine.max_padding or engine.params.n_rs_seq):
        ways.append("leave out --spec off: what takes drafts back takes padding back")
    # else two rows of F16 or F32, as the gates of experts, are summed in another order than one
    ways.append("on a processor build libllama with CMAKE_ARGS=-DGGML_LLAMAFILE=OFF")
    return ConfigError(
        "--exact is not possible with this model on this machine: the numbers of rows that agree "
        f"are {classes}, and its cache can take back {engine.max_padding} rows; "
        + ", or ".join(ways)
    )

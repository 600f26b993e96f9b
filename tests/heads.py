"""Tiny targets with multi-token heads: random ones, and ones whose heads predict exactly.

An aligned model has one-hot embeddings and blocks that add nothing, so that after token x comes
`AFTER[x]` at any temperature. Its heads look at the hidden state alone: a state of another row or
another sequence makes a wrong draft.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.architectures import ARCHITECTURES, Setting, Settings, sizes, write_model
from tests.models import CONTROL_TOKENS, MERGES

VOCAB_SIZE = 256 + len(MERGES) + len(CONTROL_TOKENS)
NUM_NORMAL = VOCAB_SIZE - len(CONTROL_TOKENS)
CYCLE = 12  # an aligned model repeats itself after so many tokens
WIDTH = 288  # of aligned models: a dimension for each token, and BIAS, which all have
BIAS = 287
SURE = 40.0  # logit of an aligned model's next token; that of the others is about 0

INDEXED_TOKENS = 64  # that sparse attention looks at

_INDEXED: Settings = {
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": INDEXED_TOKENS,
}
# architecture: the most heads to test
HEAD_ARCHITECTURES: dict[str, int] = {
    "step35": 2,
    "mimo2": 2,
    "hy_v3": 2,
    "qwen35": 1,
    "qwen35moe": 1,
    "qwen3next": 1,
    "glm4moe": 1,
    "deepseek2": 1,
    "deepseek32": 1,
    "glm-dsa": 1,
    "cohere2moe": 1,
    "nemotron_h_moe": 1,
}
_BASES: dict[str, tuple[str, Settings]] = {  # sizes of those that the table of all lacks
    # with sections, as its models that see have, libllama aborts
    "glm4moe": ("glm4moe", {"rope.dimension_sections": [0, 0, 0, 0]}),
    "hy_v3": ("glm4moe", {}),
    "cohere2moe": ("glm4moe", {}),
    "deepseek32": ("deepseek2", _INDEXED),
    "glm-dsa": ("deepseek2", _INDEXED),
    "nemotron_h_moe": ("nemotron_h", ARCHITECTURES["glm4moe"]),
}


def successors(num: int, cycle: int, seed: int) -> NDArray[np.int64]:
    """For each token the one that follows: cycles of normal tokens; control tokens stay."""
    order = np.random.default_rng(seed).permutation(num // cycle * cycle).reshape(-1, cycle)
    after = np.arange(VOCAB_SIZE)
    after[order] = np.roll(order, -1, axis=1)
    return after


AFTER = successors(NUM_NORMAL, CYCLE, 5)


def continuation(token: int, length: int) -> list[int]:
    """What an aligned model writes after this token."""
    text = []
    for _ in range(length):
        token = int(AFTER[token])
        text.append(token)
    return text


def one_hot() -> NDArray[np.float64]:
    """Embeddings of aligned models, shape (tokens, WIDTH)."""
    rows = np.zeros((VOCAB_SIZE, WIDTH))
    rows[np.arange(VOCAB_SIZE), np.arange(VOCAB_SIZE)] = 1.0
    rows[:, BIAS] = 0.1
    return rows


def successor_map() -> NDArray[np.float64]:
    """From the one-hot state of a token to that of the next one, shape (WIDTH, WIDTH)."""
    matrix = np.zeros((WIDTH, WIDTH))
    matrix[AFTER, np.arange(VOCAB_SIZE)] = 1.0
    matrix[BIAS, BIAS] = 1.0
    return matrix


def next_token_head() -> NDArray[np.float64]:
    """Reads the next token off the one-hot state of the last one, shape (tokens, WIDTH)."""
    head = np.zeros((VOCAB_SIZE, WIDTH))
    head[AFTER, np.arange(VOCAB_SIZE)] = SURE / np.sqrt(WIDTH)  # norms make a state this long
    return head


def with_heads(
    path: Path,
    architecture: str,
    num_heads: int = 1,
    *,
    seed: int = 0,
    more: Settings | None = None,
) -> Path:
    """Write a random model that has heads."""
    changes = changes_for(architecture, num_heads, more)
    return write_model(path, architecture, seed=seed, changes=changes)


def only_heads(
    path: Path, architecture: str, num_heads: int = 1, *, more: Settings | None = None
) -> Path:
    """Write the heads of `with_heads` alone, as a file for `--draft-model`."""
    changes = changes_for(architecture, num_heads, more)
    first = int(str(changes["block_count"])) - num_heads

    def keeps(name: str) -> bool:
        return not name.startswith("blk.") or int(name.split(".")[1]) >= first

    return write_model(path, architecture, changes=changes, keeps=keeps)


def aligned(path: Path, architecture: str, num_heads: int = 0) -> Path:
    """Write a model that is sure of every token, and so are its heads."""
    changes = changes_for(architecture, num_heads, {"embedding_length": WIDTH})
    return write_model(path, architecture, changes=changes, values=aligned_values)


def aligned_values(name: str, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """The tensors of an aligned model; what a block would add is zero."""
    kind = name.removesuffix(".weight").split(".", 2)[-1]
    if name == "token_embd.weight" or kind == "nextn.embed_tokens":
        return one_hot()
    if name == "output.weight" or kind == "nextn.shared_head_head":
        return next_token_head()
    if kind == "nextn.eh_proj":  # of (embedding, state) the second
        return np.concatenate([np.zeros((WIDTH, WIDTH)), successor_map()], axis=1)
    if ("scale" in name or name.endswith("norm.weight")) and len(shape) == 1:
        return np.ones(shape)
    is_last = any(part in name for part in ("attn_output", "ffn_down", "ssm_out", "proj.weight"))
    return np.zeros(shape) if is_last or name.endswith("bias") else None


def changes_for(architecture: str, num_heads: int, more: Settings | None = None) -> Settings:
    """The settings that differ from the table's: heads are layers behind the others."""
    base, extra = _BASES.get(architecture, (architecture, {}))
    own = ARCHITECTURES[base] | extra | (more or {})
    settings = sizes(architecture, own)
    if not num_heads:
        return own

    def extended(value: Setting) -> Setting:
        return [*value, *value[:1] * num_heads] if isinstance(value, list) else value

    per_layer = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    own |= {name: extended(settings[name]) for name in (*per_layer, _PATTERN)}
    return own | {
        "block_count": int(str(settings["block_count"])) + num_heads,
        "nextn_predict_layers": num_heads,
    }


_PATTERN = "attention.sliding_window_pattern"

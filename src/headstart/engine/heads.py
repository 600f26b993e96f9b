"""Multi-token heads: which file has some, and whether they belong to a target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headstart.engine import hidden_states
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.model import Model, check_file
from headstart.types import LAST_STATE

# whose heads libllama computes
ARCHITECTURES = frozenset((
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe",
    "hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file can be used for."""

    architecture: str
    num_heads: int = 0  # heads in the file that libllama computes
    is_heads_alone: bool = False
    why_none: str = ""  # why heads that the file has cannot be used
    width: int = 0  # numbers of a token's embedding
    num_tokens: int = 0  # of the vocabulary

    def why_not_heads_of(self, target: FileFacts) -> str | None:
        """Why this is no file of heads for a target, in words; None if it may be one."""
        if not self.is_heads_alone:
            return self.why_none or "it is no file of multi-token heads"
        pairs = {
            "architecture": (self.architecture, target.architecture),
            "width": (self.width, target.width),
            "vocabulary": (self.num_tokens, target.num_tokens),
        }
        for name, (own, wanted) in pairs.items():
            if own != wanted:
                return f"its {name} is {own} and the model's is {wanted}"
        return None


def read_facts(path: Path) -> FileFacts:
    """Facts of a model file, or of the first part of a split one.

    Raises:
        ModelError: it is missing or no GGUF.
    """
    check_file(path)
    header = GgufHeader(path)
    architecture = header.architecture
    facts = FileFacts(
        architecture,
        width=header.number(f"{architecture}.embedding_length"),
        num_tokens=header.count("tokenizer.ggml.tokens"),
    )
    count = header.number(f"{architecture}.nextn_predict_layers")
    if not count:
        return facts
    if reason := _why_none(header):
        return replace(facts, why_none=reason)
    if header.number("split.count") > 1:  # the weights of heads are in another part
        return replace(facts, num_heads=count)
    last = header.number(f"{architecture}.block_count") - 1
    if not header.shape(f"blk.{last}.nextn.eh_proj.weight"):  # left out by who made the file
        return facts
    is_alone = not header.shape("blk.0.attn_norm.weight")
    return replace(facts, num_heads=count, is_heads_alone=is_alone)


def _why_none(header: GgufHeader) -> str | None:
    """Why libllama cannot compute heads of this architecture, in words."""
    name = header.architecture
    if name not in ARCHITECTURES:
        return f"libllama does not compute the heads of {name} models"
    # They rotate by one position only: libllama aborts where the model has several.
    if name == "glm4moe" and any(header.numbers(f"{name}.rope.dimension_sections")):
        return f"libllama does not compute the heads of {name} models with several positions a row"
    return None


def why_not(heads: Model, target: Model, num_sequences: int) -> str | None:
    """Why a model's heads cannot draft for the target, in words; None if they can."""
    # of a context of libllama, one of them spare
    if num_sequences > 255:
        return (
            f"all slots and heads together need {num_sequences} sequences and libllama has "
            "255; lower --parallel"
        )
    pairs = {
        "architecture": (heads.facts.architecture, target.facts.architecture),
        "state": (heads.state_width, target.state_width),
        "vocabulary": (heads.vocab.size, target.vocab.size),
    }
    for name, (own, wanted) in pairs.items():
        if own != wanted:
            return f"their {name} is {own} and the model's is {wanted}"
    return hidden_states.why_not(target.facts, [LAST_STATE])

"""Settings of embeddings and reranking."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config.fields import check_ranges, option
from headstart.types.errors import ConfigError

POOLINGS = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """Embeddings and reranking."""

    embeddings: bool = option(False, "serve embeddings")
    rerank: bool = option(False, "serve /rerank; needs a model with a classification head")
    pooling: str | None = option(
        None, "how the embeddings of a text's tokens are combined; default: as the model says",
        choices=POOLINGS,
    )  # fmt: skip
    embd_normalize: int = option(
        2,
        "normalization of embeddings: -1 none, 0 scale the largest number to 32760, 1 taxicab, "
        "2 Euclidean, above 2 this p-norm",
        least=-1,
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.rerank and self.pooling not in (None, "rank"):
            raise ConfigError(f"--rerank needs --pooling rank, not {self.pooling}; drop --pooling")

    @property
    def is_on(self) -> bool:
        """Whether the model turns texts into vectors or scores."""
        return self.embeddings or self.rerank

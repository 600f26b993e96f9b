"""Settings of images in prompts."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config.fields import check_ranges, option
from headstart.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Images in prompts."""

    mmproj: str | None = option(
        None, "GGUF file of a projector, which lets the model read images; of a model from the "
        "hub, the one in its repository is used",
    )  # fmt: skip
    mmproj_auto: bool = option(True, "use the projector in the model's repository on the hub")
    mmproj_offload: bool = option(True, "compute the projector on the GPU")
    image_min_tokens: int = option(
        0, "fewest tokens of an image, where the model allows a choice; 0: as the model says",
        least=0,
    )  # fmt: skip
    image_max_tokens: int = option(
        0, "most tokens of an image, where the model allows a choice; 0: as the model says",
        least=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)
        if 0 < self.image_max_tokens < self.image_min_tokens:
            raise ConfigError(
                f"--image-min-tokens is {self.image_min_tokens} but --image-max-tokens is "
                f"{self.image_max_tokens}; lower the first or raise the second"
            )

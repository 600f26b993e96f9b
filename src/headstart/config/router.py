"""Several models behind one server: settings of the router."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config.fields import check_ranges, option


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Which models there are, and how many of them are loaded at once."""

    models_dir: str | None = option(
        None,
        "without --model: serve every GGUF file in this folder, and every subfolder that holds "
        "one, under its name",
        for_router=True,
    )
    models_preset: str | None = option(
        None,
        "without --model: INI file with a section of flags per model, and [*] for all; with it: "
        "one section, whose flags are used",
        for_router=True,
    )
    models_max: int = option(
        4,
        "models that are loaded at the same time, if they fit; 0: any number",
        least=0,
        for_router=True,
    )
    models_autoload: bool = option(True, "load a model when a request names it", for_router=True)
    models_memory: str | None = option(
        None,
        "MiB that all loaded models may take together, of main memory or by device: 16000, or "
        "main=16000,CUDA0=22000; default: what is free when the first one is loaded, less "
        "--fit-target",
        for_router=True,
    )

    def __post_init__(self) -> None:
        check_ranges(self)

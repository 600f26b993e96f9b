"""Models in the form of Ollama's lists, and the version of its API."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

OLLAMA_VERSION = "0.12.6"  # some clients refuse older ones


def model_details(architecture: str, num_params: int, file_type: str) -> dict[str, Any]:
    """Facts of a model's file; empty where unknown."""
    billions = num_params / 1e9
    size = f"{billions:.1f}B" if billions >= 1 else f"{1000 * billions:.2f}M"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": architecture,
        "families": [architecture] if architecture else [],
        "parameter_size": size if num_params else "",
        "quantization_level": file_type,
    }


def listed_model(
    name: str, path: str, size_bytes: int, since: float, details: dict[str, Any]
) -> dict[str, Any]:
    """An entry of the list of models on disk; `path` makes the digest unique."""
    return {
        "name": name,
        "model": name,
        "modified_at": written_time(since),
        "size": size_bytes,
        "digest": hashlib.sha256(f"{path}\0{size_bytes}".encode()).hexdigest(),
        "details": details,
    }


def loaded_model(listed: dict[str, Any], context_size: int) -> dict[str, Any]:
    """An entry of the list of models in memory."""
    stays = "2318-01-01T00:00:00Z"
    return listed | {"expires_at": stays, "size_vram": 0, "context_length": context_size}


def written_time(seconds: float) -> str:
    """A time in Ollama's format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

"""Loads GGUF files: checks parameters first, explains failures."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any
from weakref import finalize

from headstart.config import EngineConfig
from headstart.engine import library
from headstart.engine.gguf_header import GgufHeader, check_file
from headstart.engine.library import api
from headstart.engine.parameters import Facts, model_params
from headstart.engine.vocab import LlamaVocab
from headstart.structures.progress import Progress, loading
from headstart.types import ModelInfo
from headstart.types.errors import ModelError

log = logging.getLogger(__name__)


class Model:
    """A loaded GGUF. Freed when it is closed or collected; contexts must go first."""

    def __init__(
        self,
        path: str | Path,
        config: EngineConfig | None = None,
        *,
        is_drafter: bool = False,
        overrides: str | None = None,
    ) -> None:
        """Load the file.

        Args:
            path: the GGUF.
            config: how to load it; None: without weights, for its vocabulary and template.
            overrides: its --override-kv if there is no config.
            is_drafter: it reads hidden states of another model and does not write by itself.

        Raises:
            ModelError: it cannot be read or does not generate text.
            ConfigError: devices or splits do not exist.
        """
        vocab_only = config is None
        config = config or EngineConfig(gpu_layers=0, override_kv=overrides)
        library.start(config.numa)
        self.path = Path(path)
        check_file(self.path)
        params, self._keep = model_params(config, vocab_only=vocab_only)
        params.load_mtp |= is_drafter
        if params.use_extra_bufts and not vocab_only and is_wrong_with_amx(self.path):
            log.info("%s: AMX kernels are not used, they are wrong for it", self.path.name)
            params.use_extra_bufts = False
        library.take_errors()
        progress = Progress()

        def tell(share: float, _: object) -> bool:
            progress.tell({f"loading {self.path.name}": f"{100 * share:.0f} %"})
            loading.get()(share)
            return True

        params.progress_callback = callback = api.llama_progress_callback(tell)
        self.handle: Any = api.llama_model_load_from_file(str(self.path).encode(), params)
        del callback  # called only during loading
        progress.tell({})
        if not self.handle:
            raise library.libllama_error(ModelError, f"cannot load {self.path}")
        self.close = finalize(self, api.llama_model_free, self.handle)
        self.close.atexit = not vocab_only  # the web process may end while a thread tokenizes
        self.facts = Facts.of(self.handle, config.override_kv)
        self.vocab = LlamaVocab(self, self.handle)
        if not (vocab_only or is_drafter):
            self._check_kind()

    def _check_kind(self) -> None:
        if api.llama_model_has_encoder(self.handle) or not api.llama_model_has_decoder(self.handle):
            raise ModelError(
                f"{self.path} is not a decoder-only model; encoders and embedding models cannot "
                "generate here"
            )
        if api.llama_model_is_diffusion(self.handle):
            raise ModelError(
                f"{self.path} is a diffusion model; it does not generate from left to right"
            )
        # getting a token's text would abort
        if self.vocab.size == 0 or self.vocab.type == 0:
            raise ModelError(f"{self.path} has no vocabulary")

    @property
    def chat_template(self) -> str | None:
        return self._template(None)

    @property
    def rerank_template(self) -> str | None:
        """Template for a query and a document, with {query} and {document}."""
        return self._template(b"rerank")

    def _template(self, name: bytes | None) -> str | None:
        template = api.llama_model_chat_template(self.handle, name)
        return template.decode("utf-8", "replace") if template else None

    def metadata(self) -> dict[str, str]:
        """The GGUF's keys with scalar values, without arrays."""
        buffer = ctypes.create_string_buffer(4096)
        found: dict[str, str] = {}
        for index in range(api.llama_model_meta_count(self.handle)):
            api.llama_model_meta_key_by_index(self.handle, index, buffer, len(buffer))
            key = buffer.value.decode("utf-8", "replace")
            api.llama_model_meta_val_str_by_index(self.handle, index, buffer, len(buffer))
            if not key.startswith("tokenizer.") and not buffer.value.startswith(b"["):
                found[key] = buffer.value.decode("utf-8", "replace")
        return found

    def info(self, context_size: int = 0, memory: str = "") -> ModelInfo:
        metadata = self.metadata()
        file_type = api.llama_ftype_name(api.llama_model_ftype(self.handle)) or b""
        return ModelInfo(
            path=str(self.path),
            name=metadata.get("general.name") or self.path.stem,
            architecture=metadata.get("general.architecture", ""),
            num_params=int(api.llama_model_n_params(self.handle)),
            size_bytes=int(api.llama_model_size(self.handle)),
            vocab_size=self.vocab.size,
            context_size=context_size,
            train_context_size=self.facts.train_context,
            num_layers=int(api.llama_model_n_layer(self.handle)),
            embedding_size=int(api.llama_model_n_embd(self.handle)),
            memory=memory,
            file_type=file_type.decode("utf-8", "replace"),
            metadata=metadata,
            vocab_type=self.vocab.type,
        )


def is_wrong_with_amx(path: Path) -> bool:
    """Whether this libllama would compute the model wrongly, or abort, with repacked weights."""
    if "AMX_INT8 = 1" not in library.system_info():
        return False
    header = GgufHeader(path)
    # Models that multiply stacks of matrices: recurrent layers, for several sequences, and latent
    # attention. libllama's AMX kernels mistake an offset in bytes for one in floats there and write
    # out of bounds, or cannot compute them, which aborts the process.
    keys = ("ssm.conv_kernel", "shortconv.l_cache", "attention.key_length_mla")
    return any(header.number(f"{header.architecture}.{key}") for key in keys)

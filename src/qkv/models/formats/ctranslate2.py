"""Whisper in a folder of CTranslate2, as faster-whisper takes it: model.bin and config.json.

The file begins with its version, the name of what it holds and that one's revision, then the
number of its tensors. A tensor is its name, its axes, the number of its kind, the number of its
bytes, and these. At the end stand other names of some of them. Whole numbers are little-endian,
a text is its length (two bytes) and itself with a zero. It is no pickle: nothing in it is run.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qkv.disk import cannot_read
from qkv.errors import FileError, ModelError
from qkv.models.formats.files import Files, read_json
from qkv.models.formats.stored import DTYPES, Found, Source, Stored, plain
from qkv.models.named import NO_PICKLE

WEIGHTS = "model.bin"
VERSION, SPEC, REVISION = 6, "WhisperSpec", 3
KINDS = ("F32", "I8", "I16", "I32", "F16", "BF16")
"""By their numbers in the file."""
BYTES = {"F32": 4, "I8": 1, "I16": 2, "I32": 4, "F16": 2, "BF16": 2}

NAMES = {
    r"^(encoder|decoder)/": r"model.\1.",
    r"embeddings/weight$": "embed_tokens.weight",
    r"position_encodings/encodings$": "embed_positions.weight",
    r"layer_(\d+)/": r"layers.\1.",
    r"\.layer_norm/": ".layer_norm.",
    r"(layers\.\d+\.)self_attention/layer_norm/": r"\1self_attn_layer_norm.",
    r"(layers\.\d+\.)attention/layer_norm/": r"\1encoder_attn_layer_norm.",
    r"(layers\.\d+\.)ffn/layer_norm/": r"\1final_layer_norm.",
    r"ffn/linear_0/": "fc1.",
    r"ffn/linear_1/": "fc2.",
    r"self_attention/linear_1/": "self_attn.out_proj.",
    r"(?<!self_)attention/linear_0/": "encoder_attn.q_proj.",
    r"(?<!self_)attention/linear_2/": "encoder_attn.out_proj.",
    r"gamma$": "weight",
    r"beta$": "bias",
    r"/": ".",
}
"""Patterns in its names, one after the other, and what Hugging Face writes instead."""

FUSED = {
    r"self_attention/linear_0/": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    r"(?<!self_)attention/linear_1/": ("encoder_attn", ("k_proj", "v_proj")),
}
"""Projections that lie one below the other in one tensor."""

IDS = {
    "eos_token_id": "<|endoftext|>",
    "decoder_start_token_id": "<|startoftranscript|>",
    "no_timestamps_token_id": "<|notimestamps|>",
    "prev_sot_token_id": "<|startofprev|>",
}
"""Tokens that mean something, which the file leaves to the tokenizer."""

MULTILINGUAL = 51_865
"""Tokens from which on a Whisper knows several languages; the file lists some for all of them."""

TASKS = ("transcribe", "translate")


class WhisperFiles(Files):
    """The files of such a folder, and what Hugging Face would write into others."""

    def json(self, name: str) -> dict[str, Any] | None:
        """Return what a JSON file holds, generation_config.json even where it is not there."""
        found = super().json(name)
        if found is None and name == "generation_config.json":
            return self._generation()
        return found

    def ids(self) -> dict[str, int]:
        """Return the numbers of the tokens that begin and end a transcript."""
        tokenizer = self.tokenizer()
        special = {} if tokenizer is None else tokenizer.special
        return {key: special[token] for key, token in IDS.items() if token in special}

    def _generation(self) -> dict[str, Any]:
        """Spell what config.json says as Hugging Face does."""
        given = read_json(self.path / "config.json")
        theirs = {
            "suppress_tokens": "suppress_ids",
            "begin_suppress_tokens": "suppress_ids_begin",
            "alignment_heads": "alignment_heads",
        }
        lists = {key: given[name] for key, name in theirs.items() if name in given}
        return {**lists, **self.ids(), **self._several(given), "return_timestamps": False}

    def _several(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the languages and tasks of a model that knows several, by their tokens."""
        tokenizer, numbers = self.tokenizer(), given.get("lang_ids")
        if tokenizer is None or tokenizer.size < MULTILINGUAL or not isinstance(numbers, list):
            return {}
        special = tokenizer.special
        languages = {token: number for token, number in special.items() if number in numbers}
        tasks = {task: special.get(f"<|{task}|>") for task in TASKS}
        if not languages or tasks["transcribe"] is None:
            return {}
        return {"is_multilingual": True, "lang_to_id": languages, "task_to_id": tasks}


def holds_ctranslate2(folder: Path) -> bool:
    """Whether a folder's model.bin is none of PyTorch's pickles, by its first bytes."""
    path = folder / WEIGHTS
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return not file.read(4).startswith((b"PK", b"\x80"))
    except OSError as error:
        raise cannot_read(path, error) from error


def open_ctranslate2(folder: Path) -> Found:
    """Look at a folder of Whisper in CTranslate2's layout; no tensor is read.

    Raises:
        FileError: a file is missing or broken.
        ModelError: the file is another model than Whisper.
    """
    path, config = folder / WEIGHTS, folder / "config.json"
    files = WhisperFiles(folder)
    read_json(config)
    tensors, numbers = _read(path)
    source = dict(_named(tensors))
    return Found(_config(path, tensors, numbers, files), config, path, source, files)


def _read(path: Path) -> tuple[dict[str, Stored], dict[str, int]]:
    """Return the tensors, and the single numbers, of a file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return _tensors(path, Bytes(raw))
    except (OSError, ValueError, struct.error, IndexError) as error:
        if isinstance(error, FileError | ModelError):
            raise
        raise FileError(f"{path} is no whole file of CTranslate2 ({error}); it may have been cut "
                        "off: copy it again") from error  # fmt: skip


class Bytes:
    """Bytes of a file, read one thing after the other and never beyond the end."""

    def __init__(self, raw: mmap.mmap) -> None:
        """Stand before the first byte."""
        self.raw, self.at = raw, 0

    def number(self, kind: str) -> int:
        """Read a whole number: B, H or I, of one, two or four bytes."""
        (value,) = struct.unpack_from(f"<{kind}", self.raw, self.at)
        self.at += struct.calcsize(kind)
        return int(value)

    def text(self) -> str:
        """Read a text."""
        return self.take(self.number("H")).rstrip(b"\0").decode("utf-8")

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        start = self.skip(count)
        return self.raw[start : start + count]

    def skip(self, count: int) -> int:
        """Leave so many bytes out; return where they begin."""
        start = self.at
        if count > len(self.raw) - start:
            raise IndexError(f"{count} bytes wanted at {start}, {len(self.raw) - start} are left")
        self.at += count
        return start


def _tensors(path: Path, file: Bytes) -> tuple[dict[str, Stored], dict[str, int]]:
    version = file.number("I")
    if version != VERSION:
        raise FileError(
            f"{path} begins with {version}; wanted {VERSION}, the version of a file of "
            f"CTranslate2. If it is a pickle: {NO_PICKLE}"
        )
    spec, revision = file.text(), file.number("I")
    if (spec, revision) != (SPEC, REVISION):
        raise ModelError(f"{path} is {spec} {revision}; only {SPEC} {REVISION} is known here")
    tensors: dict[str, Stored] = {}
    numbers: dict[str, int] = {}
    for _ in range(file.number("I")):
        name = file.text()
        shape = tuple(file.number("I") for _ in range(file.number("B")))
        kind, size = KINDS[file.number("B")], file.number("I")
        stored = plain(name, shape, kind, path, file.skip(size))
        if stored.numbers * BYTES[kind] != size:
            raise IndexError(f"{name} is {shape} of {kind}, in {size} bytes")
        if name in tensors or name in numbers:
            raise IndexError(f"{name} is there twice")
        if not shape and kind not in DTYPES:
            numbers[name] = int.from_bytes(file.raw[file.at - size : file.at], "little")
        else:
            tensors[name] = stored
    for _ in range(file.number("I")):
        file.text(), file.text()
    if file.at != len(file.raw):
        raise IndexError(f"{len(file.raw) - file.at} bytes too many")
    return tensors, numbers


def _named(tensors: Source) -> Iterator[tuple[str, Stored]]:
    """Go through the tensors by Hugging Face's names, fused projections apart."""
    for name, stored in tensors.items():
        for pattern, (attention, projections) in FUSED.items():
            if re.search(pattern, name):
                yield from _apart(re.sub(pattern, f"{attention}.*.", name), stored, projections)
                break
        else:
            yield _spelled(name), stored


def _apart(name: str, stored: Stored, parts: tuple[str, ...]) -> Iterator[tuple[str, Stored]]:
    if not stored.shape or stored.shape[0] % len(parts):
        raise ModelError(f"{stored.name} is {stored.shape}; wanted rows for {', '.join(parts)}")
    rows = stored.shape[0] // len(parts)
    for i, part in enumerate(parts):
        if part == "k_proj" and name.endswith("bias"):
            continue  # Whisper's keys have none: these are zeros that fill the place
        yield _spelled(name.replace("*", part)), stored.rows(i * rows, (i + 1) * rows)


def _spelled(name: str) -> str:
    for pattern, theirs in NAMES.items():
        name = re.sub(pattern, theirs, name)
    return name


def _config(
    path: Path, tensors: Source, numbers: dict[str, int], files: WhisperFiles
) -> dict[str, Any]:
    """Read Hugging Face's config.json off the shapes."""
    try:
        words = tensors["decoder/embeddings/weight"].shape
        sizes = {
            "vocab_size": words[0],
            "d_model": words[1],
            "num_mel_bins": tensors["encoder/conv1/weight"].shape[1],
            "max_source_positions": tensors["encoder/position_encodings/encodings"].shape[0],
            "max_target_positions": tensors["decoder/position_encodings/encodings"].shape[0],
        }
        for side in ("encoder", "decoder"):
            hidden = tensors[f"{side}/layer_0/ffn/linear_0/weight"].shape[0]
            sizes[f"{side}_ffn_dim"] = hidden
            sizes[f"{side}_attention_heads"] = numbers[f"{side}/num_heads"]
            layers = (re.match(rf"{side}/layer_(\d+)/", name) for name in tensors)
            sizes[f"{side}_layers"] = len({found[1] for found in layers if found})
    except (KeyError, IndexError) as error:
        raise ModelError(f"{path} is no Whisper: it has no {error}") from error
    fixed = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
    return {"model_type": "whisper", **sizes, **fixed, **_edges(files.ids())}


def _edges(ids: dict[str, int]) -> dict[str, int]:
    """The token that begins a transcript, and the one that ends it and fills up after it."""
    theirs = {
        "bos_token_id": "decoder_start_token_id",
        "decoder_start_token_id": "decoder_start_token_id",
        "eos_token_id": "eos_token_id",
        "pad_token_id": "eos_token_id",
    }
    return {key: ids[name] for key, name in theirs.items() if name in ids}

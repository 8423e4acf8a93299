"""GGUF files against `gguf`'s reader and Hugging Face's, and every one that is refused."""

import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from qkv.errors import FileError, MissingPackageError, ModelError
from qkv.models import look
from qkv.models.formats import gguf_file
from qkv.models.formats.gguf_file import open_gguf
from qkv.models.formats.gguf_header import read_header
from tests.models.altering import refusal
from tests.models.gguf_files import llama, turned, write_llama

KINDS = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A whole file of random weights."""
    write_llama(tmp_path / "small.gguf", llama())
    return tmp_path / "small.gguf"


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_tensor_is_what_gguf_makes_of_it(tmp_path: Path, kind: Kind) -> None:
    model = llama(tie_word_embeddings=kind != Kind.F16)
    written = write_llama(tmp_path / "x.gguf", model, kind)
    source = open_gguf(tmp_path / "x.gguf").source
    assert source.keys() == written.keys()
    for name, stored in source.items():
        expected = written[name]
        for part, heads in (("q_proj", 4), ("k_proj", 2)):
            if part in name:  # what turns ours into the file's order, row by row
                assert np.array_equal(turned(stored.read().float().numpy(), heads), expected)
                break
        else:
            assert torch.equal(stored.read().float(), expected.float()), name
        assert stored.kind == (kind.name if len(stored.shape) == 2 else "F32")


@pytest.mark.parametrize("tied", [True, False])
def test_the_models_output_is_hugging_faces(tmp_path: Path, tied: bool) -> None:
    from qkv.models import load

    theirs = llama(tie_word_embeddings=tied)
    write_llama(tmp_path / "x.gguf", theirs)
    ours = load(tmp_path / "x.gguf", dtype=torch.float64)
    ids = torch.randint(97, (3, 11))
    with torch.no_grad():
        expected = theirs.double()(ids).logits
        assert (ours(ids) - expected).abs().max() < 1e-5  # eps and angles are of float32 in both


def test_the_configuration_is_hugging_faces(small: Path) -> None:
    config = open_gguf(small).config
    theirs = llama().config.to_dict()
    for key in config.keys() - {"rope_parameters", "rms_norm_eps"}:
        assert config[key] == theirs[key], key
    assert config["rope_parameters"] == theirs["rope_parameters"]
    assert config["rms_norm_eps"] == pytest.approx(theirs["rms_norm_eps"], rel=1e-7)


@pytest.mark.slow
def test_smollm2s_tensors_are_hugging_faces(smollm2_file: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    found = look(smollm2_file)
    with torch.device("meta"):
        dummy = LlamaForCausalLM(LlamaConfig(**found.config))
    loaded = load_gguf_checkpoint(smollm2_file, return_tensors=True, model_to_load=dummy)
    theirs = loaded["tensors"]
    assert found.source.keys() == theirs.keys()
    for name, stored in found.source.items():
        assert torch.equal(stored.read(), theirs[name]), name
    for key, value in found.config.items():
        assert loaded["config"].get(key, value) == value, key


@pytest.mark.slow
def test_the_header_is_what_gguf_reads(smollm2_file: Path) -> None:
    ours = read_header(smollm2_file)
    theirs = gguf.GGUFReader(smollm2_file)
    assert ours.start == theirs.data_offset
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.settings.keys() == fields.keys()
    for name, value in ours.settings.items():
        assert value == fields[name].contents(), name
    for place, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert place.name == other.name
        assert place.shape == tuple(reversed(other.shape.tolist()))
        assert ours.start + place.offset == other.data_offset


def test_a_folder_with_one_file_is_that_file(small: Path) -> None:
    assert look(small.parent).weights == small
    (small.parent / "other.gguf").write_bytes(small.read_bytes())
    assert refusal(small.parent) == (
        f"{small.parent} holds several GGUF files: other.gguf, small.gguf; give the path of one"
    )


def write_gpt2(path: Path, theirs: Any) -> None:
    """Write GPT-2 as llama.cpp's converter does: weights as outputs × inputs."""
    names = {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
        "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm",
    }  # fmt: skip
    c = theirs.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(c.n_layer)
    writer.add_context_length(c.n_positions)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(4 * c.n_embd)
    writer.add_head_count(c.n_head)
    writer.add_layer_norm_eps(c.layer_norm_epsilon)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(c.vocab_size)])
    for name, tensor in theirs.transformer.state_dict().items():
        module, _, ending = name.rpartition(".")
        values = tensor.float().numpy()
        if ".c_" in module and values.ndim == 2:
            values = np.ascontiguousarray(values.T)
        if module.startswith("h."):
            _, number, inner = module.split(".", 2)
            module = f"blk.{number}.{names[inner]}"
        else:
            module = names[module]
        writer.add_tensor(f"{module}.{ending}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gpt2s_output_is_hugging_faces(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from qkv.models import load

    config = GPT2Config(vocab_size=61, n_positions=23, n_embd=21, n_layer=2, n_head=3)
    theirs = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.5)
    write_gpt2(tmp_path / "x.gguf", theirs)
    ours = load(tmp_path / "x.gguf", dtype=torch.float64)
    ids = torch.randint(61, (3, 11))
    with torch.no_grad():
        assert (ours(ids) - theirs.double()(ids).logits).abs().max() < 1e-5


# --- what is refused ------------------------------------------------------------------------------


def test_without_gguf_the_command_that_installs_it_is_said(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    assert refusal(small, MissingPackageError) == (
        f"{small} is read by a package that is not installed; to install it: "
        "pip install 'qkv[gguf]'"
    )


def test_an_architecture_that_is_not_known_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert refusal(tmp_path / "x.gguf", ModelError) == (
        f"{tmp_path / 'x.gguf'} holds the architecture 'mamba'; known: llama, gpt2"
    )


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"", "cannot mmap an empty file"),
        (b"GG", "it begins with b'GG', not with b'GGUF'"),
        (b"PK\x03\x04" * 9, r"it begins with b'PK\x03\x04', not with b'GGUF'"),
        (b"GGUF\x01\0\0\0" + b"\0" * 16, "it is of version 1; known are (2, 3)"),
        (b"GGUF\0\0\0\x03" + b"\0" * 16, "it is of version 50331648; known are (2, 3)"),
    ],
)
def test_another_beginning_is_refused(tmp_path: Path, start: bytes, reason: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(start)
    assert refusal(path) == (
        f"{path} is no whole GGUF file ({reason}); it may have been cut off: copy it again"
    )


@pytest.mark.parametrize("kept", [4, 7, 20, 24, 40, 300, 700, 2000, -1, -5000])
def test_a_file_that_is_cut_off_is_refused(small: Path, kept: int) -> None:
    small.write_bytes(small.read_bytes()[:kept])
    message = refusal(small)
    assert message.startswith(f"{small} is no whole GGUF file (")
    assert message.endswith("); it may have been cut off: copy it again")


HUGE = struct.pack("<Q", 1 << 60)


@pytest.mark.parametrize("at", [8, 16, 24])  # tensors, settings, length of the first name
def test_counts_that_are_not_true_are_refused_at_once(small: Path, at: int) -> None:
    content = bytearray(small.read_bytes())
    content[at : at + 8] = HUGE
    small.write_bytes(content)
    assert refusal(small).startswith(f"{small} is no whole GGUF file (")


@pytest.mark.parametrize("kind", [0, 4, 7, 8, 9, 77])
def test_a_list_that_is_longer_than_the_file_is_refused(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "x.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    path.write_bytes(start + struct.pack("<II", 9, kind) + HUGE)
    with pytest.raises(FileError, match="is no whole GGUF file"):
        read_header(path)


def test_any_bytes_in_the_header_give_a_model_or_an_error_of_ours(small: Path) -> None:
    whole = small.read_bytes()
    length = read_header(small).start
    chance = random.Random(3)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3])):
            content[chance.randrange(length)] = chance.choice([0, 1, 255, chance.randrange(256)])
        small.write_bytes(content)
        with contextlib.suppress(FileError, ModelError):
            look(small)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((), "bad has 0 axes"),
        ((0, 32), r"bad is \(32, 0\): it holds no number"),
        ((1,) * 5, "bad has 5"),
    ],
)
def test_a_tensor_that_holds_nothing_is_refused(
    tmp_path: Path, shape: tuple[int, ...], reason: str
) -> None:
    path = tmp_path / "x.gguf"
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    start = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 3) + b"bad"
    path.write_bytes(start + axes + struct.pack("<IQ", 0, 0) + b"\0" * 64)
    with pytest.raises(FileError, match=rf"no whole GGUF file \({reason}"):
        read_header(path)


def test_rows_of_an_unknown_kind_take_no_memory_to_look_at(small: Path) -> None:
    """What is of no known kind has no size that could be checked; its rows are only counted."""
    content = bytearray(small.read_bytes())
    at = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight")
    content[at : at + 24] = struct.pack("<IQQI", 2, 64, 1 << 50, 99)
    small.write_bytes(content)
    assert look(small).source["model.layers.0.self_attn.q_proj.weight"].shape == (1 << 50, 64)
    assert "blk.0.attn_q.weight is (1125899906842624, 64) of kind 99" in refusal(small, ModelError)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer__ggml__tokens": 3},
        {"tokenizer__ggml__tokens": "abc", "tokenizer__ggml__model": "gpt2"},
        {"tokenizer__ggml__eos_token_id": "3"},
        {"tokenizer__ggml__eos_token_id": 3, "tokenizer__ggml__eot_token_id": "4"},
        {"tokenizer__ggml__bos_token_id": [1]},
        {"tokenizer__ggml__model": 3},
        {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": [3]},
        {"llama__attention__key_length": "x"},
        {"llama__rope__scaling__type": 3},
        {"llama__rope__dimension_count": 2},
        {"llama__rope__scale_linear": 0.5},
    ],
    ids=str,
)
@pytest.mark.usefixtures("as_shipped")
def test_settings_of_another_kind_are_refused_or_left_out(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    from qkv.models import load

    path = tmp_path / "x.gguf"
    write_llama(path, llama(), **settings)
    if settings == {"tokenizer__ggml__tokens": 3}:  # no tokenizer is wanted, and the size is known
        assert load(path).config.vocab_size == 97
        return
    with pytest.raises((FileError, ModelError)):
        load(path)


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"eos_token_id": 3, "eot_token_id": 5}, {3, 5}),
        ({"eot_token_id": 5}, {5}),
        ({"eos_token_id": 3}, {3}),
        ({}, set()),
    ],
    ids=str,
)
def test_the_end_of_a_turn_ends_a_text_too(
    tmp_path: Path, settings: dict[str, int], ends: set[int]
) -> None:
    from qkv.models import load

    path = tmp_path / "x.gguf"
    write_llama(path, llama(), **{f"tokenizer__ggml__{k}": v for k, v in settings.items()})
    assert load(path).rules.ends == ends


def test_heads_that_cannot_halve_their_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "y.gguf"
    write_llama(path, llama())
    content = path.read_bytes()
    key = b"llama.attention.head_count" + struct.pack("<I", 4)
    assert content.count(key) == 1
    path.write_bytes(content.replace(key + struct.pack("<I", 4), key + struct.pack("<I", 5)))
    assert refusal(path, ModelError) == (
        "blk.0.attn_q.weight has 64 rows, which 5 heads cannot halve"
    )


def test_a_setting_that_is_missing_is_named(small: Path) -> None:
    content = small.read_bytes()
    small.write_bytes(content.replace(b"llama.block_count", b"llama.block_cound"))
    assert refusal(small, ModelError) == (f"{small} makes no llama: missing: num_hidden_layers")


def test_a_tensor_too_many_and_one_too_few_are_named_as_the_file_does(small: Path) -> None:
    content = small.read_bytes()
    small.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_it.weight"))
    assert refusal(small, ModelError) == (
        f"{small} does not fit what it says of itself: missing: "
        "model.layers.1.mlp.up_proj.weight; surplus: blk.1.ffn_it.weight"
    )

"""Whisper's model.bin against Hugging Face's names, and every such file that is refused."""

import json
import math
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel
from torch import Tensor

from qkv.errors import FileError, ModelError
from qkv.models import look
from qkv.models.formats import ctranslate2
from qkv.models.formats.ctranslate2 import WhisperFiles, open_ctranslate2

SIZES = {
    "vocab_size": 31, "d_model": 6, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 2, "decoder_attention_heads": 3, "encoder_ffn_dim": 10,
    "decoder_ffn_dim": 7, "num_mel_bins": 5, "max_source_positions": 11,
    "max_target_positions": 13,
}  # fmt: skip
PARTS = {"q_proj": "", "k_proj": "", "v_proj": ""}


def whisper(**sizes: Any) -> Any:
    """Make Hugging Face's model of random weights."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    ids = {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "decoder_start")}
    model = WhisperForConditionalGeneration(WhisperConfig(**SIZES | sizes, **ids)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.half().float()


def fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write Hugging Face's tensors by CTranslate2's names, projections below each other."""
    found: dict[str, Tensor] = {}
    for side, count in (("encoder", 2), ("decoder", 3)):
        at = f"model.{side}"
        for kind, theirs in (("weight", "gamma"), ("bias", "beta")):
            found[f"{side}/layer_norm/{theirs}"] = state[f"{at}.layer_norm.{kind}"]
        found[f"{side}/position_encodings/encodings"] = state[f"{at}.embed_positions.weight"]
        for i in range(count):
            found |= layer(state, f"{at}.layers.{i}", f"{side}/layer_{i}", side == "decoder")
    found["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            found[f"encoder/{conv}/{kind}"] = state[f"model.encoder.{conv}.{kind}"]
    return found


def layer(state: dict[str, Tensor], at: str, to: str, cross: bool) -> dict[str, Tensor]:
    found = {}
    norms = {"self_attn_layer_norm": "self_attention", "final_layer_norm": "ffn"}
    norms |= {"encoder_attn_layer_norm": "attention"} if cross else {}
    for name, theirs in norms.items():
        found[f"{to}/{theirs}/layer_norm/gamma"] = state[f"{at}.{name}.weight"]
        found[f"{to}/{theirs}/layer_norm/beta"] = state[f"{at}.{name}.bias"]
    for kind in ("weight", "bias"):

        def part(name: str, kind: str = kind) -> Tensor:
            if name.endswith("k_proj") and kind == "bias":
                return torch.zeros(SIZES["d_model"])
            return state[f"{at}.{name}.{kind}"]

        three = [part(f"self_attn.{p}_proj") for p in "qkv"]
        found[f"{to}/self_attention/linear_0/{kind}"] = torch.cat(three)
        found[f"{to}/self_attention/linear_1/{kind}"] = part("self_attn.out_proj")
        found[f"{to}/ffn/linear_0/{kind}"] = part("fc1")
        found[f"{to}/ffn/linear_1/{kind}"] = part("fc2")
        if cross:
            found[f"{to}/attention/linear_0/{kind}"] = part("encoder_attn.q_proj")
            two = [part(f"encoder_attn.{p}_proj") for p in "kv"]
            found[f"{to}/attention/linear_1/{kind}"] = torch.cat(two)
            found[f"{to}/attention/linear_2/{kind}"] = part("encoder_attn.out_proj")
    return found


def text(content: str) -> bytes:
    raw = content.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def entry(name: str, shape: tuple[int, ...], kind: int, content: bytes) -> bytes:
    axes = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return text(name) + axes + struct.pack("<BI", kind, len(content)) + content


def write(folder: Path, model: Any, kind: torch.dtype = torch.float16, spec: str = "WhisperSpec",
          revision: int = 3, version: int = 6) -> Path:  # fmt: skip
    """Write a model as CTranslate2 does."""
    numbers = {torch.float32: 0, torch.float16: 4, torch.bfloat16: 5}
    entries = [
        entry(name, tuple(tensor.shape), numbers[kind],
              tensor.detach().to(kind).contiguous().view(torch.uint8).numpy().tobytes())
        for name, tensor in fused(model.state_dict()).items()
    ]  # fmt: skip
    entries.append(entry("encoder/num_heads", (), 2, struct.pack("<h", 2)))
    entries.append(entry("decoder/num_heads", (), 2, struct.pack("<h", 3)))
    entries.append(entry("decoder/pre_norm", (), 1, b"\1"))
    start = struct.pack("<I", version) + text(spec) + struct.pack("<II", revision, len(entries))
    alias = struct.pack("<I", 1) + text("decoder/projection/weight")
    end = alias + text("decoder/embeddings/weight")
    (folder / "model.bin").write_bytes(start + b"".join(entries) + end)
    said = {"suppress_ids": [1, 2], "suppress_ids_begin": [3], "alignment_heads": [[1, 0]]}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.bfloat16])
def test_every_tensor_has_hugging_faces_name_and_numbers(tmp_path: Path, kind: torch.dtype) -> None:
    theirs = whisper().to(kind).float()
    found = look(write(tmp_path, theirs, kind))
    state = theirs.state_dict()
    del state["proj_out.weight"]  # tied to the table of words
    assert found.source.keys() == state.keys()
    for name, stored in found.source.items():
        assert stored.shape == tuple(state[name].shape), name
        assert torch.equal(stored.read().float(), state[name]), name


def test_the_configuration_is_hugging_faces(tmp_path: Path) -> None:
    config = open_ctranslate2(write(tmp_path, whisper())).config
    theirs = whisper().config.to_dict()
    assert SIZES.items() <= config.items()
    assert all(config[key] == theirs[key] for key in config)


def test_what_is_suppressed_and_what_is_aligned_is_passed_on(tmp_path: Path) -> None:
    files = open_ctranslate2(write(tmp_path, whisper())).files
    assert files.json("generation_config.json") == {
        "suppress_tokens": [1, 2], "begin_suppress_tokens": [3], "alignment_heads": [[1, 0]],
        "return_timestamps": False,
    }  # fmt: skip


def test_whisper_tiny_fits_hugging_faces_model(whisper_folder: Path) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    found = look(whisper_folder)
    with torch.device("meta"):
        theirs = WhisperForConditionalGeneration(WhisperConfig(**found.config)).state_dict()
    del theirs["proj_out.weight"]
    assert found.source.keys() == theirs.keys()
    assert all(stored.shape == tuple(theirs[name].shape) for name, stored in found.source.items())
    assert found.config["eos_token_id"] == found.config["pad_token_id"] == 50256
    assert found.config["decoder_start_token_id"] == 50257
    generation = found.files.json("generation_config.json")
    assert generation is not None
    assert generation["no_timestamps_token_id"] == 50362
    assert generation["begin_suppress_tokens"] == [220, 50256]
    assert len(generation["alignment_heads"]) == 8


def test_the_positions_of_whisper_tinys_encoder_are_sinusoids(whisper_folder: Path) -> None:
    """Radford et al. 2022: sin and cos of t / 10000^(i / 191), one half after the other."""
    positions = look(whisper_folder).source["model.encoder.embed_positions.weight"].read().double()
    angle = torch.arange(1500)[:, None] / 10_000 ** (torch.arange(192) / 191).double()
    expected = torch.cat((angle.sin(), angle.cos()), dim=1)
    assert (positions - expected).abs().max() < 1e-3  # float16


# --- what is refused ------------------------------------------------------------------------------


def refused(folder: Path, kind: type[Exception] = FileError) -> str:
    with pytest.raises(kind) as error:
        look(folder)
    return str(error.value)


@pytest.mark.parametrize("kept", [0, 3, 10, 25, 200, 3000, -1, -30])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, whisper()) / "model.bin"
    path.write_bytes(path.read_bytes()[:kept])
    message = refused(tmp_path)
    assert message.startswith(f"{path} is no whole file of CTranslate2 (")
    assert message.endswith("); it may have been cut off: copy it again")


def test_bytes_too_many_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, whisper()) / "model.bin"
    path.write_bytes(path.read_bytes() + b"xyz")
    assert "(3 bytes too many)" in refused(tmp_path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path, whisper(), version=5)
    assert refused(tmp_path).startswith(
        f"{tmp_path / 'model.bin'} begins with 5; wanted 6, the version of a file of CTranslate2"
    )


def test_another_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, whisper(), spec="TransformerSpec", revision=7)
    assert refused(tmp_path, ModelError) == (
        f"{tmp_path / 'model.bin'} is TransformerSpec 7; only WhisperSpec 3 is known here"
    )


def test_a_file_without_the_tensors_of_whisper_is_refused(tmp_path: Path) -> None:
    write(tmp_path, whisper())
    path = tmp_path / "model.bin"
    path.write_bytes(path.read_bytes().replace(b"encoder/conv1/weight", b"encoder/conv9/weight"))
    assert refused(tmp_path, ModelError) == (
        f"{path} is no Whisper: it has no 'encoder/conv1/weight'"
    )


@pytest.mark.parametrize("shape", [(), (17, 6), (18,)], ids=str)
def test_projections_that_cannot_be_taken_apart_are_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    name, numbers = "encoder/layer_0/self_attention/linear_0/weight", math.prod(shape)
    path = write(tmp_path, whisper()) / "model.bin"
    content, old = path.read_bytes(), entry(name, (18, 6), 4, b"")[:-4]
    at = content.index(old)
    new = entry(name, shape, 4, b"x" * (2 * numbers))
    path.write_bytes(content[:at] + new + content[at + len(old) + 4 + 18 * 6 * 2 :])
    if shape == (18,):
        assert look(tmp_path).source["model.encoder.layers.0.self_attn.q_proj.weight"].shape == (6,)
        return
    assert refused(tmp_path, ModelError) == (
        f"{name} is {shape}; wanted rows for q_proj, k_proj, v_proj"
    )


def test_a_shape_that_its_bytes_do_not_fill_is_refused(tmp_path: Path) -> None:
    write(tmp_path, whisper())
    path = tmp_path / "model.bin"
    content = path.read_bytes()
    at = content.index(b"decoder/embeddings/weight\0") + len(b"decoder/embeddings/weight\0") + 1
    path.write_bytes(content[:at] + struct.pack("<I", 32) + content[at + 4 :])
    assert "(decoder/embeddings/weight is (32, 6) of F16, in 372 bytes)" in refused(tmp_path)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x80\x04"])
def test_a_pickle_of_that_name_is_never_opened(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.bin").write_bytes(start + b"x" * 100)
    assert refused(tmp_path).startswith(f"{tmp_path} offers its weights as model.bin: a pickle")


def test_a_folder_without_config_json_is_refused(tmp_path: Path) -> None:
    (write(tmp_path, whisper()) / "config.json").unlink()
    assert re.search(r"config\.json is not there", refused(tmp_path))


def test_any_bytes_in_the_header_give_a_model_or_an_error_of_ours(tmp_path: Path) -> None:
    path = write(tmp_path, whisper()) / "model.bin"
    whole, chance = path.read_bytes(), random.Random(3)
    for _ in range(300):
        content = bytearray(whole)
        content[chance.randrange(200)] = chance.randrange(256)
        content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            found = look(tmp_path)
        except (FileError, ModelError):
            continue
        for stored in found.source.values():
            assert not stored.floats or stored.read().shape == stored.shape


@pytest.mark.parametrize(("tokens", "several"), [(9, True), (10, False)])
def test_languages_are_those_that_the_file_lists_where_the_model_knows_several(
    tokens: int, several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctranslate2, "MULTILINGUAL", tokens)
    names = ("a", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>",
             "<|notimestamps|>", "<|endoftext|>", "<|startofprev|>")  # fmt: skip
    rules = tokenizers.Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, "a"))
    rules.add_special_tokens(list(names[1:]))
    rules.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"lang_ids": [2, 3]}))
    said = WhisperFiles(tmp_path).json("generation_config.json")
    assert said["decoder_start_token_id"] == 1
    assert said.get("is_multilingual", False) is several
    assert said.get("lang_to_id") == ({"<|en|>": 2, "<|de|>": 3} if several else None)
    assert said.get("task_to_id") == ({"transcribe": 4, "translate": 5} if several else None)

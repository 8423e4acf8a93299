"""The map of every family: its parameters add up, its parts are where the family has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import ArgumentError, FileError, ModelError
from qkv.models import load
from qkv.models.bert import Bert, BertConfig
from qkv.models.formats.files import Files
from qkv.models.gpt2 import Gpt2Config
from qkv.models.gpt2 import build as gpt2
from qkv.models.llama import LlamaConfig
from qkv.models.llama import build as llama
from qkv.models.maps.architecture import architecture, map_of, map_of_original
from qkv.models.maps.original import Original
from qkv.models.marian import Marian, MarianConfig
from qkv.models.vit import Vit, VitConfig
from qkv.models.whisper import Whisper, WhisperConfig
from qkv.show.architecture import Architecture, Part
from tests.models.peers import SIZES, peer

BERT = BertConfig(101, 21, 5, 3, 37, 23, 3)
LLAMA = LlamaConfig(**{k: v for k, v in SIZES["llama"].items() if k != "rope"})
MARIAN = MarianConfig(
    **{k: v for k, v in SIZES["marian"].items() if k in MarianConfig.__dataclass_fields__}
)
VIT = {k: v for k, v in SIZES["vit"].items() if k != "num_labels"}
WHISPER = WhisperConfig(101, 7, 30, 3, 5, 37, 2, 3, 41, 23, 43)

MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: Bert(BERT),
    "gpt2": lambda: gpt2(Gpt2Config(101, 61, 21, 3, 3, 37), Files(Path())),
    "llama": lambda: llama(LLAMA, Files(Path())),
    "llama, tied, biased": lambda: llama(
        LlamaConfig(**SIZES["llama"], tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        Files(Path()),
    ),
    "marian": lambda: Marian(MARIAN),
    "vit": lambda: Vit(VitConfig(**VIT)),
    "vit, classifying": lambda: Vit(
        VitConfig(
            **VIT,
            qkv_bias=False,
            architectures=["ViTForImageClassification"],
            id2label={str(i): "x" for i in range(11)},
        )
    ),
    "whisper": lambda: Whisper(WHISPER),
    "original": Original,
}


def parts(a: Architecture) -> list[Part]:
    return [part for t in a.towers for part in (*t.below, *t.layer, *t.above)]


def by_hand(a: Architecture) -> int:
    """Add up what the boxes say, as a reader of the map would."""
    return sum(
        part.parameters * (t.layers if part in t.layer else 1)
        for t in a.towers
        for part in [*t.below, *t.above, *t.layer]
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_parameters_of_the_parts_add_up_to_those_of_the_model(name: str) -> None:
    with torch.device("meta"):
        model = MODELS[name]()
    a = architecture(model, name, name)
    assert a.parameters == sum(p.numel() for p in model.parameters())
    for tower in a.towers:
        layers = getattr(model, tower.name).layers
        assert tower.layers == len(layers)
        assert tower.layer_parameters == sum(p.numel() for p in layers[-1].parameters())
        inner = sum(part.parameters for part in tower.layer)
        assert inner == tower.layer_parameters


@pytest.mark.parametrize("name", MODELS)
def test_every_number_of_a_part_is_said_in_it(name: str) -> None:
    with torch.device("meta"):
        a = architecture(MODELS[name](), name)
    for part in parts(a):
        said = " ".join(part.says)
        for size, number in part.sizes.items():
            implied = {"kv_heads", "d_v", "rotary_values", "n_embed", "most", "patch"}
            if type(number) is int and size not in implied:
                assert f"{number:,}" in said, (part.name, size)


def kinds(a: Architecture, side: int = -1) -> list[str]:
    return [part.kind.value for part in a.towers[side].layer]


def test_the_original_is_that_of_table_3() -> None:
    a = map_of_original()
    assert a.pattern == "encoder and decoder"
    assert [tower.layers for tower in a.towers] == [6, 6]
    n, hidden, words = 512, 2048, 37_000
    attention = 4 * (n * n + n)
    through = n * hidden + hidden + hidden * n + n
    encoder, decoder = attention + through + 2 * 2 * n, 2 * attention + through + 3 * 2 * n
    assert a.parameters == words * n + 6 * encoder + 6 * decoder
    assert round(a.parameters / 1e6) == 63  # the paper rounds to 65 million
    assert kinds(a, 0) == ["self-attention", "add & norm", "feed-forward", "add & norm"]
    assert kinds(a) == [
        "masked self-attention", "add & norm", "cross-attention", "add & norm", "feed-forward",
        "add & norm",
    ]  # fmt: skip
    said = [line for part in parts(a) for line in part.says]
    assert said.count("8 heads, d_k 64") == 3
    assert said.count("sinusoidal, computed") == 2
    assert "the encoder's table, shared" in said
    assert "tied to the word embedding" in said
    assert said.count("ReLU") == 2


def test_a_norm_stands_where_the_layer_has_it() -> None:
    pre = ["norm", "masked self-attention", "add", "norm", "feed-forward", "add"]
    assert kinds(architecture(MODELS["llama"](), "")) == pre
    assert kinds(architecture(MODELS["gpt2"](), "")) == pre
    assert kinds(architecture(MODELS["whisper"](), "")) == [
        *pre[:3], "norm", "cross-attention", "add", *pre[3:],
    ]  # fmt: skip
    assert kinds(architecture(MODELS["bert"](), "")) == [
        "self-attention", "add & norm", "feed-forward", "add & norm",
    ]  # fmt: skip
    norms = {part.sizes["norm"] for part in parts(architecture(MODELS["llama"](), ""))
             if "norm" in part.sizes}  # fmt: skip
    assert norms == {"RMSNorm"}


def test_grouped_heads_rotary_positions_and_gates_are_told() -> None:
    told = parts(architecture(MODELS["llama"](), ""))
    attention = next(part for part in told if part.kind.value == "masked self-attention")
    assert attention.says == ("6 heads, d_k 14", "2 key-value heads", "rotary positions, base 500")
    assert attention.sizes["kv_heads"] == 2
    through = next(part for part in told if part.kind.value == "feed-forward")
    assert through.says == ("42 → 37 → 42", "SiLU, gated")
    assert told[-1].says == ("42 → 101 tokens", "a table of its own")
    assert told[-1].parameters == 42 * 101
    assert parts(architecture(MODELS["llama, tied, biased"](), ""))[-1].parameters == 0


def test_each_family_says_what_goes_in() -> None:
    first = {name: parts(architecture(make(), ""))[0] for name, make in MODELS.items()}
    assert first["bert"].name == "text"
    assert first["gpt2"].name == "text so far"
    assert (first["vit"].name, first["vit"].says) == ("picture", ("20 × 20, 2 channels",))
    assert (first["whisper"].name, first["whisper"].says[0]) == ("sound", "46 frames × 7 bands")
    last = architecture(MODELS["vit, classifying"](), "").towers[0].above[-1]
    assert (last.name, last.says[0]) == ("classifier", "21 → 11 classes")


@torch.no_grad()
def test_the_cache_takes_what_it_takes() -> None:
    """A model reads some tokens; what its cache then holds is counted, value by value."""
    for name, tokens in (("gpt2", 7), ("llama", 11)):
        model = MODELS[name]()
        cache = model.new_cache(tokens)
        model.next(torch.randint(101, (1, tokens)), cache)
        held = sum(x.numel() for layer in cache.layers for x in layer.own.read())
        told = architecture(model, name).cache
        assert told is not None
        assert told.values * tokens == held
        assert told.memory_values == 0
        assert told.most == 61


@torch.no_grad()
def test_the_cache_of_two_towers_takes_its_memory_too() -> None:
    model = MODELS["marian"]()
    memory = model.read(torch.randint(101, (1, 13)))
    model.next(torch.randint(101, (1, 5)), memory)
    own, cross = (
        sum(x.numel() for layer in memory.layers for x in getattr(layer, part).read())
        for part in ("own", "cross")
    )
    told = architecture(model, "marian").cache
    assert told is not None
    assert (told.values * 5, told.memory_values * 13) == (own, cross)


def test_an_encoder_by_itself_keeps_nothing() -> None:
    assert architecture(MODELS["bert"](), "").cache is None


def test_a_module_of_somebody_else_is_refused() -> None:
    with pytest.raises(ArgumentError, match="model is a Linear; wanted a transformer"):
        architecture(nn.Linear(2, 2), "")


@pytest.mark.parametrize("family", ["gpt2", "llama", "marian", "vit"])
def test_a_folder_is_mapped_without_its_weights_being_read(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my model"
    theirs = peer(family, folder)
    from qkv.models.formats import stored

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(stored.Span, "blocks", refuse)
    with pytest.raises(AssertionError, match="a weight was read"):
        load(folder)
    a = map_of(folder)
    assert (a.name, a.family) == ("my model", family)
    expected = sum(p.numel() for p in theirs.parameters())
    if family == "marian":  # sines are no parameters of ours, a bias of the logits is
        expected += 101 - 2 * 61 * 21
    assert a.parameters == expected


def test_a_map_reads_the_files_of_its_format_and_no_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.models.gguf_files import llama as gguf_llama
    from tests.models.gguf_files import write_llama

    model = gguf_llama()
    write_llama(tmp_path / "x.gguf", model, tokenizer__ggml__model="broken")
    (tmp_path / "generation_config.json").write_text("broken too, and not about the file")
    expected = sum(p.numel() for p in model.parameters())
    assert map_of(tmp_path / "x.gguf").parameters == expected


def test_a_folder_that_is_none_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no model named 'nowhere'"):
        map_of("nowhere")
    folder = tmp_path / "gpt2"
    peer("gpt2", folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"n_embd": 21', '"n_embd": 24'))
    with pytest.raises(ModelError, match="unfit: "):
        map_of(folder)


def test_the_installed_models_are_mapped(minilm_folder: Path) -> None:
    a = map_of("minilm")
    assert (a.name, a.family, a.parameters) == ("minilm", "bert", 22_565_376)
    assert map_of(minilm_folder).name == minilm_folder.name

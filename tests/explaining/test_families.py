"""Every family, layer, head and kind of attention: the weights are Hugging Face's."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from qkv.errors import ArgumentError, FileError, ModelError
from qkv.explaining import inputs
from qkv.explaining.inputs import Input, Rows, read
from qkv.explaining.model import ModelText
from qkv.models import load
from qkv.models.text.tokenizer import Tokenizer

SIZES = {"vocab_size": 23, "attn_implementation": "eager"}
ENDS = {"bos_token_id": 0, "eos_token_id": 1}
PAIR = {
    "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 10, "decoder_ffn_dim": 14,
    "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip


def bert() -> Any:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    return BertModel(BertConfig(**SIZES, **sizes, intermediate_size=14, max_position_embeddings=9))


def vit() -> Any:
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 6}
    eager = {"attn_implementation": "eager"}
    return ViTModel(
        ViTConfig(**sizes, **eager, patch_size=2, intermediate_size=14), add_pooling_layer=False
    )


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(**SIZES, **ENDS, n_embd=12, n_head=3, n_layer=2, n_positions=9)
    )


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 3, "intermediate_size": 14,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**SIZES, **sizes))


def marian() -> Any:
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(MarianConfig(**SIZES, **PAIR, max_position_embeddings=9))


def whisper() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 9}
    suppress = {"suppress_tokens": [], "begin_suppress_tokens": []}
    return WhisperForConditionalGeneration(WhisperConfig(**SIZES, **PAIR, **sizes, **suppress))


TEXT, OTHER = torch.tensor([[3, 7, 2, 19, 5, 11]]), torch.tensor([[0, 4, 8, 15]])
FAMILIES = {
    bert: (TEXT,), vit: (torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(1)),),
    gpt2: (TEXT,), llama: (TEXT,), marian: (TEXT, OTHER),
    whisper: (torch.randn(1, 5, 14, generator=torch.Generator().manual_seed(1)), OTHER),
}  # fmt: skip


def opened(make: Any, folder: Path) -> tuple[ModelText, dict[str, list[Tensor]]]:
    """Our reading of a random model, and Hugging Face's weights by kind and layer."""
    theirs = make().double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:  # positions that are computed stay
                parameter.normal_(std=0.4)
    theirs.save_pretrained(folder)
    model = load(folder, dtype=torch.float64)
    given = tuple(x.double() if x.is_floating_point() else x for x in FAMILIES[make])
    names = ("input_features" if make is whisper else "input_ids", "decoder_input_ids")
    keys = ("pixel_values",) if make is vit else names
    with torch.no_grad():
        out = theirs(**dict(zip(keys, given, strict=False)), output_attentions=True)
    if len(given) == 2:
        wanted = {
            "encoder": out.encoder_attentions, "decoder": out.decoder_attentions,
            "cross": out.cross_attentions,
        }  # fmt: skip
    else:
        wanted = {"decoder" if make in (gpt2, llama) else "encoder": out.attentions}
    rows = {}
    for kind in set(wanted) - {"cross"}:
        size = wanted[kind][0].shape[-1]
        rows[kind] = Rows(tuple(f"{kind} {i}" for i in range(size)), tuple(range(size)))
    return ModelText.of(model, *given, rows=rows), wanted


@pytest.mark.slow
@pytest.mark.parametrize("make", FAMILIES)
def test_every_head_of_every_kind_has_hugging_faces_weights(make: Any, tmp_path: Path) -> None:
    reading, wanted = opened(make, tmp_path)
    assert set(reading.kinds) == set(wanted)
    assert next(iter(reading.kinds)) == next(iter(wanted))
    for kind, layers in wanted.items():
        assert len(reading.kinds[kind]) == len(layers)
        for number, theirs in enumerate(layers, start=1):
            found = reading.weights(number, kind)
            np.testing.assert_allclose(found, theirs[0].numpy(), atol=1e-6)
            for head in range(1, len(found) + 1):
                told = reading.explain(number, head, kind)
                told.verify()
                np.testing.assert_allclose(told["weights"], found[head - 1], atol=1e-12)
                side = "decoder" if kind == "cross" else kind
                assert told.step("weights").rows == reading.rows[side].names
            reading.explain_layer(number, kind).verify()
        table = reading.heads(kind=kind)
        assert table.kind == kind
        assert table.chosen == (len(wanted) > 1)


def test_layers_of_a_model_of_two_towers_are_named_by_their_tower(tmp_path: Path) -> None:
    reading, _ = opened(marian, tmp_path)
    assert reading.explain(2, 1, "encoder").title == "Encoder layer 2: Self-attention, head 1 of 2"
    told = reading.explain(3, 2, "decoder")
    assert told.title == "Decoder layer 3: Masked self-attention, head 2 of 3"
    told = reading.explain(3, 2)
    assert told.title == "Decoder layer 3: Cross-attention, head 2 of 3"
    assert told.step("weights").columns == reading.rows["encoder"].names
    told = reading.explain_layer(1, "cross")
    assert told.title == "Decoder layer 1: Decoder layer, with cross-attention, 3 heads, post-norm"
    assert told.step("cross-attention/head 1/keys").rows == reading.rows["encoder"].names
    assert reading.heads(2, "cross").title == "4 tokens that look at 6, cross, layer 2: 3 heads"
    with pytest.raises(ArgumentError, match="layer is 3; there are layers 1 to 2"):
        reading.explain(3, 1, "encoder")
    with pytest.raises(ArgumentError, match="kind is 'self'; this model has encoder, decoder, cro"):
        reading.explain(3, 1, "self")


def test_no_hook_is_left_on_the_model(tmp_path: Path) -> None:
    reading, _ = opened(marian, tmp_path)
    modules = list(reading.model.modules())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in modules)


def test_the_first_token_of_a_decoder_and_neighbours_link_nothing(tmp_path: Path) -> None:
    reading, wanted = opened(gpt2, tmp_path)
    weights = wanted["decoder"][0][0].numpy().copy()
    far = np.subtract.outer(range(6), range(6)) >= 2
    weights[:, ~far] = 0
    weights[:, :, 0] = 0
    best = {look.head: look.linking for look in reading.heads(1).ranked}
    for head, matrix in enumerate(weights, start=1):
        assert best[head] == pytest.approx(matrix.max(axis=1).mean(), abs=1e-6)


def test_across_the_bridge_every_row_counts(tmp_path: Path) -> None:
    reading, wanted = opened(marian, tmp_path)
    weights = wanted["cross"][1][0].numpy()
    best = {look.head: look.linking for look in reading.heads(2, "cross").ranked}
    for head, matrix in enumerate(weights, start=1):
        assert best[head] == pytest.approx(matrix.max(axis=1).mean(), abs=1e-6)


WORDS = [
    *("<s>", "</s>", "[UNK]", "the", "sky", "is", "blue", "el", "cielo", "es", "azul"),
    *"abcdefghijk",
]


def speller() -> Tokenizer:
    """Cuts at blanks, and puts </s> at the end."""
    rules = tokenizers.Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    rules.pre_tokenizer = WhitespaceSplit()
    rules.add_special_tokens(["<s>", "</s>"])
    rules.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return Tokenizer(rules)


def taken(monkeypatch: pytest.MonkeyPatch, model: Any, source: str, **options: str) -> Input:
    model._tokenizer = speller()
    monkeypatch.setattr(inputs, "load", lambda name: model)
    return read(source, "any", **options)


def test_a_translator_reads_the_text_and_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(marian, tmp_path)[0].model
    monkeypatch.setattr(inputs, "find", lambda name: tmp_path)
    told = taken(monkeypatch, model, "the sky is blue", output="el cielo azul")
    assert told.rows["encoder"] == Rows(("the", "sky", "is", "blue", "</s>"), (0, 1, 2, 3))
    assert told.rows["decoder"] == Rows(("<s>", "el", "cielo", "azul"), (1, 2, 3))
    assert [x.tolist() for x in told.given] == [[[3, 4, 5, 6, 1]], [[0, 7, 8, 10]]]
    part = taken(monkeypatch, model, "the sky is blue", tokens="1:3", output="azul")
    assert part.rows["encoder"] == Rows(("sky", "is", "</s>"), (0, 1))
    own = taken(monkeypatch, model, "the sky")
    assert own.given[1][0, 0] == 0
    assert 1 not in own.given[1]
    source, target = own.given
    logits = model(source, target)[0].argmax(-1)[:-1]
    assert logits.tolist() == target[0, 1:].tolist(), "greedy: each token is the best one"
    ModelText.of(told.model, *told.given, rows=told.rows).explain(1, 2).verify()


def test_a_listener_reads_a_sound_and_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(whisper, tmp_path)[0].model.float()
    path = tmp_path / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        tone = np.sin(np.arange(1500) / 5) * 9000
        file.writeframes(tone.astype("<i2").tobytes())
    told = taken(monkeypatch, model, str(path), output="el cielo")
    assert told.rows["encoder"].names == tuple(f"{0.02 * i:.2f} s" for i in range(7))
    assert told.rows["encoder"].own == (0, 1, 2, 3, 4), "1500 samples are 4.7 rows of 320"
    assert told.rows["decoder"] == Rows(("<s>", "el", "cielo"), (1, 2))
    assert told.given[0].shape == (1, 5, 14)
    reading = ModelText.of(told.model, *told.given, rows=told.rows)
    for kind in ("encoder", "decoder", "cross"):
        reading.explain(1, 2, kind).verify()
        reading.explain_layer(2, kind).verify()
    own = taken(monkeypatch, model, str(path))
    assert own.given[1][0, 0] == 0
    with pytest.raises(ArgumentError, match="cuts a text; this model reads none"):
        taken(monkeypatch, model, str(path), tokens="0:2")


def test_tokens_are_named_without_the_marks_of_their_vocabulary() -> None:
    class Spelled(Tokenizer):
        pieces = ("Ġmap", "▁map", "##ing", "Ã©", "Ġ", "ðŁ")
        texts = (" map", "map", "##ing", "é", " ", "�")

        def piece(self, number: int) -> str:
            return self.pieces[number] if number < 6 else super().piece(number)

        def decode(self, ids: list[int], special: bool = False) -> str:
            return self.texts[ids[0]]

    spelled = Spelled(tokenizers.Tokenizer(WordLevel({"a": 0}, "a")))
    names = [inputs.name_of(spelled, i) for i in range(7)]
    assert names == ["map", "map", "##ing", "é", "Ġ", "ðŁ", "#6"]


def test_the_patches_of_a_picture_are_named_by_row_and_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    reading, _ = opened(vit, tmp_path)
    model = reading.model.float()
    monkeypatch.setattr(inputs, "load", lambda name: model)
    monkeypatch.setattr(inputs, "find", lambda name: tmp_path)
    picture = image.new("RGB", (12, 12), (255, 0, 0))
    picture.save(tmp_path / "red.png")
    seen = read(str(tmp_path / "red.png"), "any")
    assert seen.rows["encoder"].names[:5] == (
        "[class]", "patch 1,1", "patch 1,2", "patch 1,3", "patch 2,1",
    )  # fmt: skip
    assert seen.rows["encoder"].own == tuple(range(1, 10))
    (pixels,) = seen.given
    assert pixels.shape == (1, 3, 6, 6)
    assert pixels[0, :, 3, 3].tolist() == [1.0, -1.0, -1.0]
    ModelText.of(seen.model, *seen.given, rows=seen.rows).explain(1, 2).verify()
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.25, 0.5, 0.75], "image_std": [0.5, 0.25, 2]}'
    )
    (pixels,) = read(str(tmp_path / "red.png"), "any").given
    assert pixels[0, :, 3, 3].tolist() == [(1 - 0.25) / 0.5, (0 - 0.5) / 0.25, (0 - 0.75) / 2]
    for wrong in ("[1, 2]", "3", '["a", 1, 1]', "[0, 1, 1]", "[NaN, 1, 1]", "[true, 1, 1]"):
        (tmp_path / "preprocessor_config.json").write_text(f'{{"image_std": {wrong}}}')
        with pytest.raises(ModelError, match=r"image_std is .*; wanted a number for each colour"):
            read(str(tmp_path / "red.png"), "any")
    (tmp_path / "preprocessor_config.json").unlink()
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(FileError, match="cannot be read as a picture"):
        read(str(tmp_path / "red.png"), "any")
    with pytest.raises(ArgumentError, match="cuts a text; this model reads none"):
        read(str(tmp_path / "red.png"), "any", tokens="0:2")
    with pytest.raises(FileError, match="cannot be read as a picture"):
        read(str(tmp_path / "config.json"), "any")
    with pytest.raises(FileError, match="cannot be read as a picture"):
        read(str(tmp_path / "none.png"), "any")


@pytest.mark.parametrize("kind", ["cross", "decoder"])
def test_a_decoder_that_wrote_nothing_ranks_no_heads(tmp_path: Path, kind: str) -> None:
    reading, _ = opened(marian, tmp_path)
    rows = {
        "encoder": Rows(tuple("abcdef"), tuple(range(6))), "decoder": Rows(tuple("abcd"), ()),
    }  # fmt: skip
    silent = ModelText(reading.model, rows, reading.kinds)
    with pytest.raises(ArgumentError, match=r"the model wrote nothing.*--output"):
        silent.heads(kind=kind)
    assert silent.heads(kind="encoder").ranked


def test_a_text_that_is_too_long_is_told_how_to_read_less_of_it(minilm_folder: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"takes 1 to 512: choose fewer tokens .*--tokens 0:256"
    ):
        read("a " * 600, str(minilm_folder))

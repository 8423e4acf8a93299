"""The captioner against PyTorch's own layers, its folder, its words, and where they looked."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn

from qkv.errors import ArgumentError, FileError, ModelError, ShapeError
from qkv.models import load
from qkv.models.captioner import CAPTIONER, Captioner, CaptionerConfig
from qkv.models.formats.files import Unwritten
from qkv.models.maps.architecture import map_of
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from tests.models.altering import change_config
from tests.models.peers import close
from tests.reference import agree, array, weights

UNEQUAL: dict[str, Any] = {
    "vocab_size": 11, "image_size": 20, "d_model": 24, "encoder_layers": 3,
    "encoder_attention_heads": 3, "encoder_ffn_dim": 37, "decoder_layers": 2,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 29, "max_position_embeddings": 9,
    "decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EQUAL = UNEQUAL | {
    "vocab_size": 8, "image_size": 8, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
}  # fmt: skip
WORDS = ("a", "three", "of", "left", "seven", ",", "and", "one")


def words(size: int) -> Tokenizer:
    names = ("<pad>", "<start>", "<end>", *WORDS[: size - 3])
    rules = tokenizers.Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, "<pad>"))
    rules.pre_tokenizer = Whitespace()
    rules.add_special_tokens(list(names[:3]))
    return Tokenizer(rules)


def drawn(**sizes: Any) -> Captioner:
    """A captioner in float64 whose every parameter is drawn, those that begin as 0 or 1 too."""
    config = CaptionerConfig(**(UNEQUAL | sizes))
    model = Captioner(config, Unwritten(words(config.vocab_size))).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.35)
    return model


@pytest.fixture
def model() -> Captioner:
    return drawn()


def ink(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


# The whole once more, of PyTorch's own layers.


def place_waves(side: int, n: int) -> Tensor:
    """A row a place: sine, cosine, sine, … of its line, then of its column."""
    rows = torch.zeros(side * side, n, dtype=torch.float64)
    for place in range(side * side):
        for half, number in enumerate(divmod(place, side)):
            for i in range(n // 2):
                angle = number / 100 ** ((i - i % 2) / (n // 2))
                rows[place, half * n // 2 + i] = math.cos(angle) if i % 2 else math.sin(angle)
    return rows


def seen(model: Captioner, pictures: Tensor) -> Tensor:
    """Three convolutions as sums over windows that are cut out."""
    x, stem = pictures[:, None], model.seeing
    for conv, stride in ((stem.conv1, 2), (stem.conv2, 2), (stem.conv3, 1)):
        side = x.shape[-1] // stride
        windows = F.unfold(x, 3, padding=1, stride=stride)
        x = torch.einsum("oi,bip->bop", conv.weight.flatten(1), windows) + conv.bias[:, None]
        x = (x * (1 + torch.erf(x / math.sqrt(2))) / 2).unflatten(-1, (side, side))
    rows = x.flatten(2).mT
    centred = rows - rows.mean(-1, keepdim=True)
    normal = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    normal = normal * stem.norm.weight + stem.norm.bias
    return normal + place_waves(x.shape[-1], rows.shape[-1])


def attending(ours: Any) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(
        ours.n_embed, ours.num_heads, batch_first=True, dtype=torch.float64
    )
    packed = [getattr(ours, name) for name in ("WQ", "WK", "WV")]
    theirs.in_proj_weight.data = torch.cat([one.weight for one in packed])
    theirs.in_proj_bias.data = torch.cat([one.bias for one in packed])
    theirs.out_proj.load_state_dict(ours.WO.state_dict())
    return theirs


def layer(ours: Any, x: Tensor, memory: Tensor | None) -> Tensor:
    """x + attention(norm(x)), the bridge where there is a memory, x + feed-forward(norm(x))."""
    hidden = None
    if memory is not None:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    y = ours.attention_norm(x)
    x = x + attending(ours.attention)(y, y, y, attn_mask=hidden, need_weights=False)[0]
    if memory is not None:
        y = ours.cross_norm(x)
        x = x + attending(ours.cross)(y, memory, memory, need_weights=False)[0]
    y = ours.feed_forward_norm(x)
    return x + F.linear(
        F.gelu(F.linear(y, ours.feed_forward.W1.weight, ours.feed_forward.W1.bias)),
        ours.feed_forward.W2.weight, ours.feed_forward.W2.bias,
    )  # fmt: skip


def whole(model: Captioner, pictures: Tensor, ids: Tensor) -> Tensor:
    memory = seen(model, pictures)
    for one in model.encoder.layers:
        memory = layer(one, memory, None)
    memory = model.encoder.norm(memory)
    n, table = model.config.d_model, model.words.weight
    place = torch.arange(ids.shape[1])[:, None] / 10000 ** (torch.arange(0, n, 2).double() / n)
    y = table[ids] * math.sqrt(n) + torch.stack((place.sin(), place.cos()), -1).flatten(-2).float()
    for one in model.decoder.layers:
        y = layer(one, y, memory)
    return model.decoder.norm(y) @ table.T


@pytest.mark.parametrize("sizes", [UNEQUAL, EQUAL], ids=["unequal", "equal"])
@torch.no_grad()
def test_logits_equal_those_of_pytorchs_own_layers(sizes: dict[str, Any]) -> None:
    model = drawn(**sizes)
    pictures = ink(5, sizes["image_size"], sizes["image_size"])
    ids = torch.randint(sizes["vocab_size"], (5, 8))
    close(model.embed_source(pictures), seen(model, pictures), 1e-6)  # waves in float32 or 64
    close(model(pictures, ids), whole(model, pictures, ids), 1e-6)


@torch.no_grad()
def test_ink_of_8_bits_is_a_share_of_255(model: Captioner) -> None:
    pictures = torch.randint(256, (3, 20, 20), dtype=torch.uint8)
    close(model.embed_source(pictures), model.embed_source(pictures.double() / 255), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_precision_computes_and_trains(dtype: torch.dtype) -> None:
    short = dtype == torch.bfloat16  # by autocast: the weights stay float32
    model = Captioner(CaptionerConfig(**UNEQUAL, dropout=0.1)).to(torch.float32 if short else dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=short):
        logits = model(torch.randint(256, (2, 20, 20), dtype=torch.uint8), torch.ones(2, 3).long())
    assert logits.dtype == dtype
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# The folder.


def saved(model: Captioner, folder: Path) -> Path:
    save_folder(model, CAPTIONER, folder, tokenizer=model.tokenizer, dtype=torch.float64)
    return folder


@torch.no_grad()
def test_a_saved_captioner_is_loaded_as_it_was(model: Captioner, tmp_path: Path) -> None:
    again: Captioner = load(saved(model, tmp_path), dtype=torch.float64)
    assert (again.config, again.rules) == (model.config, model.rules)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)
    pictures = ink(3, 20, 20)
    for one, other in zip(again.caption(pictures), model.caption(pictures), strict=True):
        assert (one.ids, one.reason, one.text) == (other.ids, other.reason, other.text)
        # what lies in a file begins anywhere in memory, on which products' last bits depend
        assert one.score == pytest.approx(other.score, rel=1e-14)
    assert not again.training


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"image_size": 22}, "image_size is 22; wanted a multiple of 4"),
        ({"d_model": 18, "decoder_attention_heads": 3}, "d_model is 18; wanted a multiple of 4"),
        ({"eos_token_id": 11}, "wanted ones below vocab_size=11"),
        ({"dropout": 1.5}, "dropout is 1.5; wanted 0 to below 1"),
        ({"image_size": None}, "image_size is None, wanted a whole number above 0"),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_captioner_is_refused(
    model: Captioner, tmp_path: Path, said: dict[str, Any], error: str
) -> None:
    saved(model, tmp_path)
    change_config(tmp_path, **said)
    with pytest.raises(ModelError, match=error):
        load(tmp_path)


def test_its_map_accounts_for_every_parameter(model: Captioner, tmp_path: Path) -> None:
    told = map_of(saved(model, tmp_path))
    assert told.parameters == sum(p.numel() for p in model.parameters())
    assert told.pattern == "encoder and decoder"


# Captions.


@torch.no_grad()
def test_a_caption_is_the_best_token_each_time_until_the_end(model: Captioner) -> None:
    pictures = ink(7, 20, 20)
    for picture, one in zip(pictures, model.caption(pictures, batch_size=3), strict=True):
        ids = [1]
        while ids[-1] != 2 and len(ids) < 10:
            logits = whole(model, picture[None], torch.tensor([ids]))[0, -1]
            logits[[0, 1]] = -math.inf  # what fills and what begins is never written
            ids.append(int(logits.argmax()))
        assert list(one.ids) == ids[1:]
        assert one.text == model.tokenizer.decode([i for i in ids if i > 2])


def test_pictures_come_as_arrays_tensors_and_files(model: Captioner, tmp_path: Path) -> None:
    model.float()
    pictures = np.random.default_rng(2).integers(256, size=(4, 20, 20), dtype=np.uint8)
    np.save(tmp_path / "pictures.npy", pictures)
    wanted = [one.ids for one in model.caption(pictures)]
    shares = (pictures / 255).astype(np.float32)
    for given in (torch.from_numpy(pictures), shares, tmp_path / "pictures.npy",
                  str(tmp_path / "pictures.npy")):  # fmt: skip
        assert [one.ids for one in model.caption(given)] == wanted
    assert [one.ids for one in model.caption(pictures[2])] == wanted[2:3]
    np.save(tmp_path / "turned.npy", shares.astype(">f4"))
    for given in (shares[:, ::-1][:, ::-1], shares.astype(">f8"), tmp_path / "turned.npy"):
        assert [one.ids for one in model.caption(given)] == wanted


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("pictures", "error"),
    [
        (np.zeros((2, 20, 24), np.uint8), r"pictures are \(2, 20, 24\); wanted \(20, 20\)"),
        (np.zeros((0, 20, 20), np.uint8), r"pictures are \(0, 20, 20\); wanted"),
        (np.zeros((1, 1, 20, 20), np.uint8), r"pictures are \(1, 1, 20, 20\); wanted"),
        (np.zeros(20), r"pictures are \(20,\); wanted"),
        (np.full((20, 20), 7.0), "from 7.0 to 7.0; wanted uint8 from 0"),
        (np.full((20, 20), -0.1), "from -0.1 to -0.1; wanted uint8 from 0"),
        (np.full((20, 20), np.nan), "from nan to nan; wanted uint8"),
        (np.full((20, 20), 7), "pictures are torch.int64, from 7 to 7; wanted uint8"),
    ],
    ids=str,
)
def test_what_is_no_picture_is_refused(model: Captioner, pictures: Any, error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        model.caption(pictures)


def test_arguments_that_cannot_be_meant_are_refused(model: Captioner) -> None:
    with pytest.raises(ArgumentError, match="batch_size is 0; wanted 1 or more"):
        model.caption(ink(20, 20), batch_size=0)
    with pytest.raises(ArgumentError, match="there is no option tokens"):
        model.caption(ink(20, 20), tokens=3)
    with pytest.raises(ArgumentError, match=r"call model\.caption\(pictures\)"):
        model.generate([[1]])


@pytest.mark.usefixtures("as_shipped")
def test_a_wrong_size_is_named_where_the_model_is_called_itself(model: Captioner) -> None:
    with pytest.raises(ShapeError, match=r"pictures are \(1, 8, 20\); wanted \(batch, 20, 20\)"):
        model(ink(1, 8, 20), torch.ones(1, 1).long())


def test_files_that_hold_no_pictures_are_refused(model: Captioner, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.save(tmp_path / "texts.npy", np.array(["a", "b"]))
    (tmp_path / "junk.npy").write_bytes(b"junk")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "cut.npy").write_bytes(b"PK\x03\x04 and no more")
    np.savez(tmp_path / "several.npz", np.zeros(3))
    bad = ("cut.npy", "objects.npy", "texts.npy", "junk.npy", "empty.npy", "several.npz", "no.npy")
    for name in bad:
        with pytest.raises(FileError, match=f"{name} (cannot be read|holds no numbers)"):
            model.caption(tmp_path / name)


# Where words looked.


@torch.no_grad()
def shares(model: Captioner, pictures: Tensor, ids: Tensor, layer: int) -> np.ndarray:
    """softmax(Q Kᵀ / √d) of a bridge, from what goes into it."""
    cross, into = model.decoder.layers[layer].cross, []
    hook = cross.register_forward_pre_hook(lambda module, args: into.append(args[:2]))
    model(pictures, ids)
    hook.remove()
    ((enc_q, enc_k),) = into
    q, k = (
        array(F.linear(x, w.weight, w.bias).unflatten(-1, (cross.num_heads, -1)).transpose(1, 2))
        for x, w in ((enc_q, cross.WQ), (enc_k, cross.WK))
    )
    return weights(q, k)


@pytest.mark.parametrize("layer", [1, 2, None])
def test_looking_gives_the_weights_of_the_query_that_wrote_each_word(
    model: Captioner, layer: int | None
) -> None:
    pictures, ids = ink(3, 20, 20), torch.randint(3, 11, (3, 7))
    looked = model.looking(pictures, ids, layer)
    started = torch.cat((torch.ones(3, 1).long(), ids), dim=1)
    wanted = shares(model, pictures, started, (layer or 2) - 1)[:, :, :7]
    agree(looked, wanted.reshape(3, 4, 7, 5, 5), 1e-12)


def test_looks_are_the_mean_over_heads_or_one_of_them(model: Captioner) -> None:
    picture = ink(20, 20)
    ids = torch.tensor([[3, 4, 8, 6, 5]])
    one = model.looks(picture, "a three, left of")
    weights = model.looking(picture[None], ids)[0]
    assert one.words == ("a", "three", ",", "left", "of")
    agree(one.maps, array(weights.mean(dim=0)), 1e-12)
    agree(one.maps.sum((1, 2)), np.ones(5), 1e-12)
    agree(one.picture, array(picture), 0)
    agree(model.looks(picture, "a three, left of", head=3).maps, array(weights[2]), 1e-12)
    first = model.looks(picture, "a three, left of", layer=1)
    agree(first.maps, array(model.looking(picture[None], ids, 1)[0].mean(dim=0)), 1e-12)


def test_without_a_caption_the_words_are_those_that_are_written(model: Captioner) -> None:
    picture = ink(20, 20)
    (written,) = model.caption(picture)
    one = model.looks(picture)
    assert one.caption == written.text
    assert len(one.maps) == len(one.words) == len([i for i in written.ids if i > 2])
    assert one.truth is None


def test_looks_refuse_what_there_is_not(model: Captioner) -> None:
    picture = ink(20, 20)
    for asked, error in (
        ({"layer": 3}, "layer is 3; there are layers 1 to 2"),
        ({"layer": 0}, "layer is 0; there are layers 1 to 2"),
        ({"head": 5}, "head is 5; there are heads 1 to 4"),
        ({"head": 0}, "head is 0; there are heads 1 to 4"),
        ({"caption": "  "}, "there is no token in it"),
        ({"caption": "a a a a a a a a a a"}, "10 tokens, the model takes 1 to 9"),
    ):
        with pytest.raises(ArgumentError, match=error):
            model.looks(picture, **{"caption": "a three", **asked})
    with pytest.raises(ArgumentError, match="there are 2 pictures; wanted one"):
        model.looks(ink(2, 20, 20))
    bare = Captioner(model.config)
    with pytest.raises(ModelError, match="no tokenizer"):
        bare.looks(picture)

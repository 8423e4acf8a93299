"""What stands below and above a tower's layers: how input becomes rows, and rows an answer."""

from typing import Any

from torch import nn

from qkv.models.bert import Embedding
from qkv.models.encoder_decoder import EncoderDecoderModel
from qkv.models.maps.parts import normalised, parameters, positions, table, words
from qkv.models.seeing import PLACE, Seeing
from qkv.models.vit import Patches
from qkv.models.whisper import Listening
from qkv.show.architecture import Kind, Part, counted


def below(side: str, model: Any) -> tuple[Part, ...]:
    """Return the parts before the layers of one side, from the bottom upwards."""
    names = (name for name in ("listening", "seeing", "embedding") if hasattr(model, name))
    stem = getattr(model, next(names, ""), None)
    if side == "encoder" and isinstance(stem, Listening):
        return _sound(stem)
    if side == "encoder" and isinstance(stem, Seeing):
        return _places(stem)
    if isinstance(stem, Patches):
        return _picture(stem)
    if isinstance(stem, Embedding):
        return _segmented(stem)
    writes = side == "decoder" and isinstance(model, EncoderDecoderModel)
    shared = "encoder" if writes and stem is None else None
    placed = () if model.positions is None else (positions(model.positions),)
    if shared and model.positions.weight is not None:
        placed = (positions(model.positions, again="encoder"),)
    text = _text("text so far" if side == "decoder" else "text", model.most)
    return text, words(model.words, again=shared), *placed


def above(side: str, model: Any) -> tuple[Part, ...]:
    """Return the parts after the layers of one side, from the bottom upwards."""
    norm = getattr(model, side).norm
    parts = () if norm is None else (normalised(norm),)
    if side == "decoder":
        return *parts, _logits(model)
    return parts if hasattr(model, "decoder") else (*parts, _states(model))


def _text(name: str, most: int | None) -> Part:
    if most is None:
        return Part(Kind.INPUT, name, ("one number a token",))
    return Part(Kind.INPUT, name, (f"{counted(most)} tokens at most",), {"most": most})


def _segmented(stem: Embedding) -> tuple[Part, ...]:
    """norm(token + position + segment)        Devlin et al. 2018, figure 2"""
    return (
        _text("text", stem.position.weight.shape[0]),
        words(stem.token),
        table("+ positions", stem.position.weight, "positions"),
        table("+ segments", stem.segment.weight, "segments", Kind.EMBEDDING),
        normalised(stem.norm),
    )


def _picture(stem: Patches) -> tuple[Part, ...]:
    c, size = stem.config, stem.config.image_size
    shape = f"{counted(size)} × {counted(size)}, {counted(c.num_channels)} channels"
    patches = f"{c.patch_size} × {c.patch_size} each → {counted(c.hidden_size)}"
    return (
        Part(Kind.INPUT, "picture", (shape,), {"size": size, "channels": c.num_channels}),
        Part(
            Kind.EMBEDDING, "patches", (f"{counted(c.side**2)} patches", patches),
            {"patch": c.patch_size, "patches": c.side**2, "n_embed": c.hidden_size},
            parameters(stem.patch),
        ),
        Part(
            Kind.EMBEDDING, "class token", ("learned, stands first",),
            {"n_embed": c.hidden_size}, stem.first.numel(),
        ),
        table("+ positions", stem.position, "positions"),
    )  # fmt: skip


def _sound(stem: Listening) -> tuple[Part, ...]:
    mels, rows = stem.conv1.in_channels, int(stem.positions.most or 0)
    width = stem.conv1.out_channels
    frames = rows * stem.conv2.stride[0]
    return (
        Part(
            Kind.INPUT, "sound",
            (f"{counted(frames)} frames × {counted(mels)} bands", "a frame every 10 ms"),
            {"frames": frames, "mels": mels},
        ),
        Part(
            Kind.EMBEDDING, "two convolutions",
            (f"{counted(mels)} → {counted(width)} → {counted(width)}", "GELU; two frames a row"),
            {"mels": mels, "n_embed": width}, parameters(stem.conv1, stem.conv2),
        ),
        # Whisper's release computes this table once and never trains it.
        positions(stem.positions, says="sinusoidal, stored"),
    )  # fmt: skip


def _places(stem: Seeing) -> tuple[Part, ...]:
    width, side = stem.n_embed, stem.size // PLACE
    through = " → ".join(["1", *[counted(width)] * 3])
    return (
        Part(
            Kind.INPUT, "picture", (f"{counted(stem.size)} × {counted(stem.size)}, one channel",),
            {"size": stem.size, "channels": 1},
        ),
        Part(
            Kind.EMBEDDING, "three convolutions",
            (through, f"GELU; {PLACE} × {PLACE} pixels a row"),
            {"patch": PLACE, "patches": side**2, "n_embed": width},
            parameters(stem.conv1, stem.conv2, stem.conv3),
        ),
        normalised(stem.norm),
        Part(
            Kind.POSITIONS, "+ positions", ("sinusoidal, computed", "of lines and of columns"),
            {"learned": False, "n_embed": width},
        ),
    )  # fmt: skip


def _logits(model: Any) -> Part:
    rows, width = model.words.weight.shape
    head: nn.Module | None = getattr(model, "head", None)
    bias: nn.Parameter | None = getattr(model, "logit_bias", None)
    tied = "tied to the word embedding" if head is None else "a table of its own"
    says = [f"{counted(width)} → {counted(rows)} tokens", tied]
    says += [] if bias is None else ["and a bias for each token"]
    sizes = {"n_embed": width, "vocabulary": rows, "tied": head is None, "bias": bias is not None}
    return Part(Kind.OUTPUT, "logits", tuple(says), sizes, parameters(head, bias))


def _states(model: Any) -> Part:
    """What an encoder by itself gives."""
    width = model.encoder.layers[0].attention.n_embed
    classifier: nn.Linear | None = getattr(model, "classifier", None)
    if classifier is None:
        row = (f"{counted(width)} values a token",)
        return Part(Kind.OUTPUT, "context-aware embeddings", row, {"n_embed": width})
    classes = classifier.out_features
    says = (f"{counted(width)} → {counted(classes)} classes", "reads the class token's row")
    sizes = {"n_embed": width, "classes": classes}
    return Part(Kind.OUTPUT, "classifier", says, sizes, parameters(classifier))

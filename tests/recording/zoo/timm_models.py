"""Models of timm's, each with its attention written out and fused; run as a program of its own.

    python -m tests.recording.zoo.timm_models FOLDER

prints what came out as JSON. FOLDER holds timm and torchvision, apart from the other packages:
transformers would take up a torchvision that it can import, and this one has no compiled part that
fits PyTorch's CPU build. Its operators are declared without bodies; the models do not use them.
"""

import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from tests.recording.zoo.architectures import peaked
from tests.recording.zoo.examining import same_bits

PICTURE = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
SWIN = {"img_size": 32, "embed_dim": 16, "depths": (2, 1), "num_heads": (2, 4), "window_size": 4}
FOUR = {"img_size": 64, "num_classes": 7}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("vision_transformer", "VisionTransformer", PICTURE),
    "ViT, queries and keys normalised": (
        "vision_transformer",
        "VisionTransformer",
        PICTURE | {"qk_norm": True},
    ),
    "SigLIP": (
        "vision_transformer",
        "VisionTransformer",
        PICTURE | {"global_pool": "map", "class_token": False},
    ),
    "BEiT": ("beit", "Beit", PICTURE | {"use_rel_pos_bias": True}),
    "EVA": ("eva", "Eva", PICTURE | {"use_rot_pos_emb": True}),
    "Swin": ("swin_transformer", "SwinTransformer", SWIN | {"patch_size": 4}),
    "Swin v2": ("swin_transformer_v2", "SwinTransformerV2", SWIN | {"patch_size": 4}),
    "PVT v2": (
        "pvt_v2",
        "PyramidVisionTransformerV2",
        {
            "depths": (1, 1, 1, 1),
            "embed_dims": (8, 16, 24, 32),
            "num_heads": (1, 2, 2, 4),
            "mlp_ratios": (2, 2, 2, 2),
            "num_classes": 7,
        },
    ),
    "Twins": (
        "twins",
        "Twins",
        FOUR
        | {
            "patch_size": 4,
            "embed_dims": (16, 16, 32, 32),
            "num_heads": (2, 2, 4, 4),
            "mlp_ratios": (2, 2, 2, 2),
            "depths": (2, 1, 1, 1),
            "sr_ratios": (8, 4, 2, 1),
            "wss": (8, 4, 2, 1),
        },
    ),
    "LeViT": (
        "levit",
        "Levit",
        FOUR | {"embed_dim": (32, 48), "key_dim": 8, "depth": (1, 1), "num_heads": (2, 4)},
    ),
}


def declare_operators(folder: Path) -> torch.library.Library:
    """Declare what torchvision names and does not bring; the result has to be kept."""
    source = (folder / "torchvision" / "_meta_registrations.py").read_text(encoding="utf-8")
    names = re.findall(r'register_meta\("(\w+)"\)|register_fake\("torchvision::(\w+)"\)', source)
    library = torch.library.Library("torchvision", "DEF")
    for name in sorted({one or other for one, other in names}):
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


def build(file: str, name: str, settings: dict[str, Any], fused: bool) -> nn.Module:
    """Return a model with peaked attention, on the path that is asked for."""
    import importlib

    from timm.layers import set_fused_attn

    set_fused_attn(fused, experimental=fused)
    torch.manual_seed(0)
    model = getattr(importlib.import_module(f"timm.models.{file}"), name)(**settings)
    return peaked(model).eval()


def weights_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What goes into the dropouts of the attentions: their weights, where they are written out."""
    found: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        found.append(given[0])

    drops = [m for path, m in model.named_modules() if path.endswith("attn_drop")]
    handles = [drop.register_forward_pre_hook(keep) for drop in drops]
    model(x)
    for handle in handles:
        handle.remove()
    return found


def examine(name: str) -> Iterator[dict[str, Any]]:
    """Run a model on both paths, plain and watched."""
    side = MODELS[name][2].get("img_size", 64)
    x = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    wanted = weights_of(build(*MODELS[name], fused=False), x)
    for fused in (False, True):
        model = build(*MODELS[name], fused=fused)
        plain = model(x)
        with qkv.watch(model) as seen:
            watched = model(x)
        calls = list(seen)
        yield {
            "model": name,
            "fused": fused,
            "calls": len(calls),
            "wanted": len(wanted),
            "how": sorted({call.operands.how for call in calls}),
            "same_bits": same_bits(plain, watched),
            "weights": [
                _difference(call.weights.dense(), one)
                for call, one in zip(calls, wanted, strict=False)
            ],
            "errors": [call.error_eps for call in calls],
        }


def _difference(recovered: Tensor, wanted: Tensor) -> float | None:
    if recovered.numel() != wanted.numel() or recovered.shape[-2:] != wanted.shape[-2:]:
        return None
    return float((recovered - wanted.reshape(recovered.shape)).abs().max())


def main(folder: Path) -> None:
    """Examine every model and print what came out."""
    sys.path.insert(0, str(folder))
    warnings.filterwarnings("ignore")
    declared = declare_operators(folder)
    with torch.no_grad():
        found = [result for name in MODELS for result in examine(name)]
    print(json.dumps(found))  # noqa: T201
    del declared


if __name__ == "__main__":
    main(Path(sys.argv[1]))

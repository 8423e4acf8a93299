"""Which operations PyTorch really ran, and how large the largest tensor among them was."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
UNFUSED = {"_softmax", "bmm", "_safe_softmax", "baddbmm", "matmul"}


class Ran(TorchDispatchMode):
    """Notes the names of operations and the largest number of elements in a result."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func._schema.name.removeprefix("aten::"))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes():
                # what is stored counts: an expanded view is as small as what it views
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.largest = max(self.largest, stored)
        return result

    @property
    def kernels(self) -> list[str]:
        """The fused calls, in order."""
        return [name for name in self.names if "scaled_dot_product" in name]

    @property
    def unfused(self) -> list[str]:
        """Operations of an attention that is not fused."""
        return [name for name in self.names if name in UNFUSED]


def watched(function: Callable[[], Tensor], *, grad: bool = False) -> Ran:
    """Run a function, its backward pass too if wanted, and tell what ran."""
    ran = Ran()
    with ran, torch.set_grad_enabled(grad):
        result = function()
        if grad:
            result.sum().backward()
    return ran

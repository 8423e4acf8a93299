"""A tensor of the model that a call keeps: by reference, as long as nothing overwrites it."""

import weakref
from collections.abc import Callable

from torch import Tensor
from torch._C import DispatchKey, _SetExcludeDispatchKeyGuard


class Held:
    """A tensor that is kept; copied before something overwrites it.

    `reader` is called then: what was laid out from the tensor has to be laid out again.
    """

    __slots__ = ("__weakref__", "reader", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        """Keep it, apart from its gradients."""
        with _SetExcludeDispatchKeyGuard(DispatchKey.ADInplaceOrView, False):
            self.tensor = tensor.detach()  # so it counts what is written into the model's tensor
        self.reader: weakref.WeakMethod[Callable[[], None]] | None = None

    def __call__(self) -> Tensor:
        """Return the tensor."""
        return self.tensor

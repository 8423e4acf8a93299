"""What was written into a call's tensors after the block, where no watch saw it."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.calls.held import Held
from qkv.recording.calls.operands import Lazy, Operands


class Versions:
    """How often something had been written into each tensor of a call, as the block ended.

    Within a block what is overwritten is copied first. Nothing counts what is written into the
    tensors of `torch.inference_mode`.
    """

    def __init__(self, operands: Operands) -> None:
        """Take them down."""
        self._before = {
            name: (tensor, tensor._version)
            for name, tensor in _tensors(operands)
            if not tensor.is_inference()
        }

    def check(self, where: str) -> None:
        """Refuse a call whose tensors are no longer what they were.

        Raises:
            RecordingError: something was written into one of them.
        """
        for name, (tensor, version) in self._before.items():
            if tensor._version != version:
                raise RecordingError(
                    f"{name} of {where} was written into after the block, and a recording holds "
                    f"tensors by reference: what is left is not what ran. Ask before it is "
                    f"overwritten, save() it, or give the model a copy"
                )


def _tensors(operands: Operands) -> Iterator[tuple[str, Tensor]]:
    for name in ("q", "k", "v", "output"):
        yield name, getattr(operands, name)
    for number, operation in enumerate((*operands.scores, *operands.after)):
        for lazy in (operation.operand, operation.other):
            tensor = _by_reference(lazy)
            if tensor is not None:
                yield f"the mask or factor of operation {number + 1} ({operation.kind})", tensor
    for name in ("sinks", "noise"):
        tensor = _by_reference(getattr(operands, name))
        if tensor is not None:
            yield name, tensor


def _by_reference(lazy: Lazy | None) -> Tensor | None:
    """Return the tensor that is held, without laying it out or changing it."""
    held = getattr(getattr(lazy, "laid", lazy), "held", None)
    if isinstance(held, Held):
        return held.tensor
    if isinstance(lazy, partial) and len(lazy.args) == 1 and isinstance(lazy.args[0], Tensor):
        return lazy.args[0]
    return None

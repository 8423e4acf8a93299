"""What is computed in the middle of a run leaves it as it was."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from qkv.recording.calls.undisturbed import undisturbed


class Counting(TorchDispatchMode):
    count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_no_mode_sees_it_and_modes_come_back() -> None:
    x = torch.randn(3, 3)
    with Counting() as counting:
        with undisturbed():
            x @ x
        assert counting.count == 0
        assert _get_current_dispatch_mode() is counting
        x @ x
    assert counting.count == 1


def test_precision_and_gradients_are_as_outside() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        with undisturbed():
            inside = x @ x
        after = x @ x
    assert inside.dtype == torch.float32
    assert not inside.requires_grad
    assert after.dtype == torch.bfloat16
    assert after.requires_grad

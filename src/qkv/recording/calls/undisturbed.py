"""Computing in the middle of a model's run as if it did not run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute as outside of the model: seen by no watch, in full precision, without gradients."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C._DisableAutocast())
        yield

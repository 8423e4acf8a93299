"""Real weights, run by the modules of `nn`: a family is a configuration and a table of names.

Here stand the families, the three architectures that they fill, and how a model is found and made.
`formats` reads files, `text` cuts text into tokens, `writing` generates, `hearing` transcribes,
`maps` tells what a model is made of.

`load` finds a model, reads its configuration, and fills the family's model from its tensors
after every name and shape among them has been accounted for. It is imported when it is first
used: which models there are can be asked without PyTorch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.models.loading import FAMILIES as FAMILIES
    from qkv.models.loading import load as load
    from qkv.models.loading import look as look

__all__ = ["FAMILIES", "load", "look"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(
            f"module 'qkv.models' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    from qkv.models import loading

    return getattr(loading, name)

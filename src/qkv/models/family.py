"""What tells one family of models from another, and how its model is made of what was found.

Nothing is half-loaded: the configuration, and every tensor's name, shape and kind, are accounted
for before memory is taken, and all that is wrong is said at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.errors import ArgumentError, ModelError
from qkv.models.fill import Undrawn, fill
from qkv.models.formats.files import Files
from qkv.models.formats.stored import Found, Source, Stored
from qkv.models.settings import fits, wanted

Config = TypeVar("Config")
Model = TypeVar("Model", bound=nn.Module)

NAMES_SHOWN = 20
REFUSED = (ArgumentError, RuntimeError, OverflowError, TypeError, ValueError, KeyError)
"""What a module raises where its sizes do not go together, or no memory could hold them."""
SMALL = 1 << 24
"""A size up to which no config.json is doubted, however few numbers its files hold."""


@dataclass(frozen=True)
class Family(Generic[Config, Model]):
    """What tells one family of models from another.

    Attributes:
        name: its `model_type` in config.json.
        config: dataclass whose fields are the keys of config.json that matter; one without a
            default is required.
        assumes: what config.json may only say thus, where it says anything about it.
        build: makes the model, from its configuration and the other files of its folder.
        tensors: modules (or single parameters) in the file and those of ours that take them; `*`
            stands for the number of a layer.
        spelling: patterns in the file's names and what to read instead.
        unused: beginnings of names of tensors that the model does without; `*` as above.
        unpack: makes of a tensor, by the name that the table knows, those that the table names:
            for files that fuse or transpose.
    """

    name: str
    config: type[Config]
    assumes: Mapping[str, object]
    build: Callable[[Config, Files], Model]
    tensors: Mapping[str, str]
    spelling: Mapping[str, str]
    unused: tuple[str, ...]
    unpack: Callable[[str, Stored], Iterable[tuple[str, Stored]]] | None = None

    def reads(self, name: str) -> str:
        """Return a name in a file as the table spells it."""
        for pattern, plain in self.spelling.items():
            name = re.sub(pattern, plain, name)
        return name

    def leaves_out(self, name: str) -> bool:
        """Whether the model does without a tensor, by the name that the table knows."""
        patterns = (re.escape(start).replace(r"\*", r"\d+") for start in self.unused)
        return any(re.match(pattern, name) for pattern in patterns)

    def source(self, parameter: str) -> str:
        """Return what the table calls a parameter of ours: `encoder.layers.3.attention.WQ.bias`."""
        parts = parameter.split(".")
        pattern = ".".join("*" if part.isdigit() else part for part in parts)
        table = {ours: theirs for theirs, ours in self.tensors.items()}
        module, _, kind = pattern.rpartition(".")
        theirs = table[pattern] if pattern in table else f"{table[module]}.{kind}"
        for number in filter(str.isdigit, parts):
            theirs = theirs.replace("*", number, 1)
        return theirs


def family_of(found: Found, families: Mapping[str, Family[Any, Any]]) -> Family[Any, Any]:
    """Return the family that a configuration names.

    Raises:
        ModelError: it names none, or one that is not known.
    """
    name = found.config.get("model_type")
    if not isinstance(name, str) or name not in families:
        raise ModelError(f"{found.config_path} says model_type {name!r}; known: "
                         f"{', '.join(families)}")  # fmt: skip
    return families[name]


def make(
    family: Family[Config, Model], found: Found, dtype: torch.dtype, device: torch.device | str
) -> Model:
    """Build the model of what was found and fill it, in evaluation mode.

    Raises:
        FileError: a file that is broken.
        ModelError: the configuration, the tensors or the tokenizer do not make a model.
    """
    config = configure(family, found)
    model = shaped(family, config, found, found.files)
    names = account(family, model, found)
    check_vocabulary(config, found)
    fill(model, names, dtype, device)
    return model.eval()


def shaped(family: Family[Config, Model], config: Config, found: Found, files: Files) -> Model:
    """Build a model of shapes only; nothing is drawn to be thrown away.

    Raises:
        ModelError: sizes or settings that make no model.
    """
    with torch.device("meta"), Undrawn():
        try:
            return family.build(config, files)
        except ModelError:
            raise  # it says already which file makes none
        except REFUSED as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelError(f"{found.config_path} makes no {family.name}: {reason}") from error


def configure(family: Family[Config, Model], found: Found) -> Config:
    """Fill the family's dataclass from a configuration.

    Raises:
        ModelError: keys are missing or mean nothing, or sizes are out of all proportion to the
            tensors; names all of them.
    """
    given = found.config
    known = fields(family.config)  # type: ignore[arg-type]  # a dataclass, which no bound can say
    needed = [f for f in known if f.default is MISSING and f.default_factory is MISSING]
    missing = [f.name for f in needed if f.name not in given]
    problems = [f"missing: {', '.join(missing)}"] if missing else []
    for f in known:
        if f.name not in given:
            continue
        if not fits(given[f.name], f.type, f.name):
            problems.append(f"{f.name} is {given[f.name]!r}, wanted {wanted(f.type, f.name)}")
        elif excess := _excess(f.name, given[f.name], found.source):
            problems.append(f"{f.name} is {given[f.name]!r}, {excess}")
    for key, value in family.assumes.items():
        if given.get(key, value) != value:
            problems.append(f"{key} is {given[key]!r}, only {value!r} is known here")
    if problems:
        raise ModelError(f"{found.config_path} makes no {family.name}: {'; '.join(problems)}")
    return family.config(**{f.name: given[f.name] for f in known if f.name in given})


def _excess(name: str, value: object, source: Source) -> str | None:
    """Say what a number exceeds, so that no model is built which the tensors cannot fill."""
    if not isinstance(value, int):
        return None
    if "layer" in name and value > len(source):
        return f"but there are {len(source)} tensors in all"
    numbers = sum(stored.numbers for stored in source.values())
    if value > max(numbers, SMALL):
        return f"but the tensors hold {numbers} numbers in all"
    return None


def account(family: Family[Config, Model], model: nn.Module, found: Found) -> dict[str, Stored]:
    """Match the parameters of a model with the tensors that were found, both ways.

    Returns:
        What goes into each entry of the model's state dict.

    Raises:
        ModelError: names all tensors that are missing, surplus, or of a wrong shape or kind.
    """
    shapes = {ours: tuple(parameter.shape) for ours, parameter in model.state_dict().items()}
    wanted = {family.source(ours): ours for ours in shapes}
    names: dict[str, Stored] = {}
    surplus, unfit = [], []
    for plain, stored in _unpacked(family, found.source):
        ours = wanted.get(plain)
        if ours is None or ours in names:
            if not family.leaves_out(plain):
                surplus.append(stored.name)
            continue
        names[ours] = stored
        if stored.shape != shapes[ours] or not stored.floats:
            unfit.append(
                f"{stored.name} is {stored.shape} of {stored.kind}, wanted {shapes[ours]} of floats"
            )
    missing = [theirs for theirs, ours in wanted.items() if ours not in names]
    problems = {"missing": missing, "surplus": surplus, "unfit": unfit}
    said = [f"{what}: {_listed(which)}" for what, which in problems.items() if which]
    if said:
        one = found.weights == found.config_path
        settings = "what it says of itself" if one else found.config_path.name
        raise ModelError(f"{found.weights} does not fit {settings}: {'; '.join(said)}")
    return names


def _unpacked(family: Family[Config, Model], source: Source) -> Iterator[tuple[str, Stored]]:
    for name, stored in source.items():
        plain = family.reads(name)
        yield from [(plain, stored)] if family.unpack is None else family.unpack(plain, stored)


def _listed(named: Sequence[str]) -> str:
    names = sorted(set(named))  # one that was to be unpacked is there several times
    shown = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more ({len(names)} in all)" if more > 0 else shown


def check_vocabulary(config: object, found: Found) -> None:
    """Raise ModelError where the tokenizer has tokens for which the model has no row."""
    rows, tokenizer = getattr(config, "vocab_size", None), found.files.tokenizer()
    if not isinstance(rows, int) or tokenizer is None:
        return
    last = max([tokenizer.size - 1, *tokenizer.special.values()])
    if last >= rows:
        raise ModelError(
            f"the tokenizer of {found.files.path} has tokens up to {last}; the model's table has "
            f"{rows} rows (vocab_size)"
        )


def check_place(dtype: torch.dtype, device: torch.device | str) -> None:
    """Raise ArgumentError where no parameters of that dtype can be on that device."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ArgumentError(f"dtype is {dtype}; wanted one with fractions, such as torch.float32")
    try:
        torch.empty(0, dtype=dtype, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"device is {str(device)!r}, which cannot be used: {reason}") from error

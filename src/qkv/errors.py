"""Every error that qkv raises on purpose.

A message names the argument, what was got, what was wanted, and what to do about it.
"""


class QkvError(Exception):
    """The root: `except QkvError` catches whatever qkv refuses."""


class ArgumentError(QkvError, ValueError):
    """An argument has a value that cannot be meant."""


class ShapeError(ArgumentError):
    """Tensors whose axes do not fit each other."""


class MaskError(ArgumentError):
    """A mask that is ambiguous or does not fit the similarities."""


class NameNotFoundError(QkvError, KeyError):
    """A name that a record does not hold, or that several of its parts share."""

    def __str__(self) -> str:
        """Return the message as it is; a KeyError would print it in quotes."""
        return str(self.args[0])


class VerificationError(QkvError, AssertionError):
    """A recorded number that its independent recomputation does not confirm."""


class FileError(QkvError, OSError):
    """A file that cannot be read as what it claims to be, or cannot be written."""


class LinesError(FileError):
    """A file with lines that are not as wanted; the message has a line for each."""


class ModelError(QkvError, ValueError):
    """A model folder whose configuration or tensors do not make the model."""


class MissingPackageError(QkvError, ImportError):
    """An optional package that is not installed; the message says how to install it."""


class RecordingError(QkvError, LookupError):
    """A recording that holds no attention, or calls that do not make one matrix."""


class TrainingError(QkvError, ArithmeticError):
    """A training whose numbers are none any more."""

"""By what texts are known again: their number and a sum over all of them."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import TypeVar

Example = TypeVar("Example", bound=str | tuple[str, ...])


class Fingerprint:
    """Is taken of texts as they pass; other texts, or another order, give another."""

    def __init__(self) -> None:
        """Begin with none."""
        self._count, self._sum = 0, sha256()

    def through(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Let examples pass, each a text or several."""
        for example in examples:
            self.add(*((example,) if isinstance(example, str) else example))
            yield example

    def add(self, *texts: str) -> None:
        """Take one example in."""
        self._count += 1
        for text in (str(len(texts)), *texts):
            content = text.encode("utf-8", "surrogatepass")
            self._sum.update(
                len(content).to_bytes(8, "big") + content
            )  # "ab", "c" is not "a", "bc"

    def describe(self) -> dict[str, int | str]:
        """Return the number of examples and the sum, as JSON."""
        return {"examples": self._count, "sha256": self._sum.hexdigest()}

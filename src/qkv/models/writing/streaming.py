"""Text of tokens as they come: whole characters only, and nothing that could be taken back."""

import copy
from collections.abc import Container, Sequence

from qkv.models.text.tokenizer import Tokenizer
from qkv.models.writing.stopping import Stops
from qkv.models.writing.written import Reason

UNKNOWN = "�"
"""What a tokenizer writes for bytes that make no character, or not yet (U+FFFD)."""


class Characters:
    """Whole characters of tokens as they come.

    A token may hold a part of a character only, and its text may depend on what stands before it
    (a space at the beginning of a text is dropped); so tokens are read behind those before them.

    Args:
        tokenizer: knows the text of tokens.
        before: tokens that stand before the first.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """Nothing has come yet."""
        self._decode = tokenizer.decode
        self._before = tuple(before)
        self._new: tuple[int, ...] = ()
        self._known = _complete(tokenizer, self._before)

    def add(self, number: int) -> str:
        """Take the next token; return the characters that are complete now."""
        self._new = (*self._new, number)
        text = self._decode((*self._before, *self._new))
        return "" if text.endswith(UNKNOWN) else self._moved(text)

    def close(self) -> str:
        """Return what is not complete, as it stands, since nothing more comes."""
        return self._moved(self._decode((*self._before, *self._new))) if self._new else ""

    def _moved(self, text: str) -> str:
        piece = text[len(self._known) :]
        if piece:  # what has no text cannot stand before others
            self._before, self._new = self._new, ()
            self._known = self._decode(self._before)
        return piece


def _complete(tokenizer: Tokenizer, before: tuple[int, ...]) -> str:
    """Return the text of a prompt, without the bytes of a character that its end has begun.

    Where the end is the very character that stands for such bytes, the tokenizer cuts the text
    into the same tokens again: at most three, one for each of its bytes.
    """
    known = tokenizer.decode(before)
    if not known.endswith(UNKNOWN):
        return known
    end = tokenizer(known, around=False).ids[-3:]
    return known if before[-len(end) :] == end else known.rstrip(UNKNOWN)


class Text:
    """The text of tokens as they come, up to a stop text.

    Args:
        tokenizer, before: as `Characters` takes them.
        stop: as `Stops` takes them.

    Attributes:
        given: all that was given out so far.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        """Nothing has come yet."""
        self._characters, self._stops = Characters(tokenizer, before), Stops(stop)
        self.given = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop text is complete."""
        return self._stops.found is not None

    def add(self, number: int) -> str:
        """Take the next token; return what is sure to be text now."""
        return self._give(self._stops.add(self._characters.add(number)))

    def close(self) -> str:
        """Return the rest, since nothing more comes."""
        if self.stopped:
            return ""
        rest = self._stops.add(self._characters.close())
        return self._give(rest + self._stops.close())

    def fork(self) -> "Text":
        """Return the same text, to go on in another way."""
        other = copy.copy(self)
        other._characters, other._stops = copy.copy(self._characters), copy.copy(self._stops)
        return other

    def _give(self, piece: str) -> str:
        self.given += piece
        return piece


def ending(token: int, text: Text | None, ends: Container[int], last: bool) -> Reason | None:
    """Add a token to its text, and say why the text ends with it; None where it goes on.

    Args:
        token: the next token.
        text: takes it, unless it is one that ends texts; None where nobody wants to know.
        ends: tokens that end texts.
        last: whether there is no room for another token.
    """
    ended = token in ends
    if text is not None and not ended:
        text.add(token)
    if text is not None and (ended or last):
        text.close()
    if text is not None and text.stopped:
        return "stop"
    return "end" if ended else "length" if last else None


def spell(
    tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], ends: Container[int]
) -> str:
    """Return the text of tokens as it streams behind a prompt, without those that end texts."""
    text = Text(tokenizer, prompt)
    for number in ids:
        if number not in ends:
            text.add(number)
    text.close()
    return text.given

"""What may stand together in a frame's slots: everything, or one at random."""

import random
from collections.abc import Iterator
from itertools import product

from qkv.train.data.entries import Adjective, Gender, Noun, Verb
from qkv.train.data.lexicon import Lexicon
from qkv.train.data.slots import AdjectiveSlot, NounSlot, Slots
from qkv.train.data.wording import Filling, Said


class Fillings:
    """The fillings of a frame's slots.

    What fits a slot is looked up once for each verb, or for the nouns of an adjective.
    """

    def __init__(self, slots: Slots, lexicon: Lexicon) -> None:
        """Look nothing up yet."""
        self.slots, self.lexicon = slots, lexicon
        self._nouns: dict[tuple[str, Verb | None], list[Said]] = {}
        self._adjectives: dict[tuple[str, tuple[Noun, ...]], list[Adjective]] = {}

    def every(self) -> Iterator[Filling]:
        """Yield all of them, in the order of the files."""
        for verb in self._verbs():
            for nouns in product(*(self._said(slot, verb) for slot in self.slots.nouns)):
                said = self._different(nouns)
                if said is None:
                    continue
                fitting = [self._fitting(slot, said) for slot in self.slots.adjectives]
                for adjectives in product(*fitting):
                    yield self._filling(verb, said, adjectives)

    def one(self, rng: random.Random) -> Filling | None:
        """Draw each slot evenly among what fits; None where what was drawn first fits nothing.

        So a noun with few adjectives is met as often as one with many.
        """
        verb = rng.choice(self._verbs())
        options = [self._said(slot, verb) for slot in self.slots.nouns]
        if not all(options):
            return None
        said = self._different(tuple(rng.choice(some) for some in options))
        if said is None:
            return None
        fitting = [self._fitting(slot, said) for slot in self.slots.adjectives]
        if not all(fitting):
            return None
        return self._filling(verb, said, tuple(rng.choice(some) for some in fitting))

    def _filling(
        self, verb: Verb | None, said: dict[str, Said], adjectives: tuple[Adjective, ...]
    ) -> Filling:
        slots = self.slots.adjectives
        return Filling(
            said,
            {slot.letter: one for slot, one in zip(slots, adjectives, strict=True)},
            {slot.letter: _agreement(slot, said) for slot in slots},
            verb,
        )

    def _different(self, nouns: tuple[Said, ...]) -> dict[str, Said] | None:
        """Return the nouns by their letters, None where one stands twice."""
        if len({said.noun.name for said in nouns}) < len(nouns):
            return None
        return {slot.letter: said for slot, said in zip(self.slots.nouns, nouns, strict=True)}

    def _verbs(self) -> list[Verb | None]:
        if (slot := self.slots.verb) is None:
            return [None]
        is_class = slot.subject not in {noun.letter for noun in self.slots.nouns}
        return [
            verb
            for verb in self.lexicon.verbs
            if (slot.to is None) == (verb.objects is None)
            and (not is_class or slot.subject in verb.subjects.wanted)
        ]

    def _said(self, slot: NounSlot, verb: Verb | None) -> list[Said]:
        if (key := (slot.letter, verb)) not in self._nouns:
            wanted = [slot.nouns]
            if verb and self.slots.verb and slot.letter == self.slots.verb.subject:
                wanted.append(verb.subjects)
            if verb and verb.objects and self.slots.verb and slot.letter == self.slots.verb.to:
                wanted.append(verb.objects)
            self._nouns[key] = [
                Said(noun, many)
                for noun in self.lexicon.nouns
                if all(noun in selection for selection in wanted)
                for many in ((False, True) if slot.many is None else (slot.many,))
                if noun.counted or not many
            ]
        return self._nouns[key]

    def _fitting(self, slot: AdjectiveSlot, said: dict[str, Said]) -> list[Adjective]:
        nouns = tuple(said[letter].noun for letter in slot.of)
        if (key := (slot.letter, nouns)) not in self._adjectives:
            self._adjectives[key] = [
                adjective
                for adjective in self.lexicon.adjectives_of[nouns[0].name]
                if slot.uses <= adjective.uses
                and slot.verb in (None, adjective.verb)
                and all(noun in adjective.goes_with for noun in nouns[1:])
            ]
        return self._adjectives[key]


def _agreement(slot: AdjectiveSlot, said: dict[str, Said]) -> tuple[Gender, bool]:
    """Return gender and number: of the first noun, or of all together."""
    nouns = [said[letter] for letter in slot.of]
    if not slot.together:
        return nouns[0].noun.gender, nouns[0].many
    return ("f" if all(one.noun.gender == "f" for one in nouns) else "m"), True

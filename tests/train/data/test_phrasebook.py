"""The phrase book: its Spanish by rule, its sentences, what is held out, and bad lines."""

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from jaxtyping import config as jaxtyping_config

from qkv.errors import ArgumentError, FileError
from qkv.train.data.frames import Frame
from qkv.train.data.phrasebook import FOLDER, PhraseBook, Split

PLAIN = str.maketrans("áéíóú", "aeiou")

# What the rules below do not give, and a dictionary does.
PLURALS = {"joven": "jóvenes", "examen": "exámenes", "paraguas": "paraguas"}
MASCULINE_IN_A = {"día", "mapa", "idioma", "problema", "poema", "artista", "dentista"}
FEMININE_IN_O = {"mano", "foto", "radio"}
FEMININE_OTHERWISE = {
    "madre", "mujer", "flor", "nube", "nieve", "leche", "sal", "miel", "carne", "calle", "noche",
    "tarde", "torre", "pared", "llave", "serpiente", "raíz", "nariz", "paz", "voz", "actriz",
    "cantante", "libertad",
}  # fmt: skip
ENGLISH_PLURALS = {
    "man": "men", "woman": "women", "mouse": "mice", "foot": "feet", "tooth": "teeth",
    "wolf": "wolves", "leaf": "leaves", "shelf": "shelves", "scarf": "scarves",
    "knife": "knives", "tomato": "tomatoes", "potato": "potatoes", "volcano": "volcanoes",
}  # fmt: skip
THIRD = {  # stems that change under stress, and the irregular
    "ver": "ve", "oír": "oye", "cerrar": "cierra", "encontrar": "encuentra", "perder": "pierde",
    "seguir": "sigue", "querer": "quiere", "recordar": "recuerda", "entender": "entiende",
    "construir": "construye", "mover": "mueve", "dormir": "duerme", "volar": "vuela",
    "sonreír": "sonríe", "morir": "muere",
}  # fmt: skip
PAST = {
    "ver": "vio", "oír": "oyó", "traer": "trajo", "seguir": "siguió", "construir": "construyó",
    "dormir": "durmió", "sonreír": "sonrió", "morir": "murió", "caer": "cayó",
}  # fmt: skip
I_DO = {
    "ver": "veo", "oír": "oigo", "conocer": "conozco", "seguir": "sigo", "proteger": "protejo",
    "traer": "traigo", "caer": "caigo", "crecer": "crezco", "desaparecer": "desaparezco",
    "sonreír": "sonrío",
}  # fmt: skip
GERUNDS = {
    "oír": "oyendo", "leer": "leyendo", "traer": "trayendo", "construir": "construyendo",
    "caer": "cayendo", "dormir": "durmiendo", "morir": "muriendo", "seguir": "siguiendo",
    "sonreír": "sonriendo",
}  # fmt: skip
ENGLISH_PAST = {
    "see": "saw", "hear": "heard", "eat": "ate", "drink": "drank", "write": "wrote",
    "buy": "bought", "sell": "sold", "break": "broke", "wear": "wore", "find": "found",
    "lose": "lost", "know": "knew", "sing": "sang", "teach": "taught", "bring": "brought",
    "forget": "forgot", "understand": "understood", "draw": "drew", "build": "built",
    "hide": "hid", "throw": "threw", "steal": "stole", "sleep": "slept", "run": "ran",
    "swim": "swam", "fly": "flew", "fall": "fell", "shine": "shone", "grow": "grew",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def as_shipped_throughout() -> Iterator[None]:
    """Switch the enforcement of shapes off: there are none here, and millions of calls."""
    before = jaxtyping_config.jaxtyping_disable
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module")
def book(as_shipped_throughout: None) -> PhraseBook:
    return PhraseBook.read()


@pytest.fixture(scope="module", params=[0, 7])
def split(book: PhraseBook, request: pytest.FixtureRequest) -> Split:
    return book.split(request.param, each=200, held_out=500)


def plural(word: str) -> str:
    """The plural of a Spanish noun or adjective, by rule."""
    if word in PLURALS:
        return PLURALS[word]
    if word[-1] in "aeiouáéó":
        return word + "s"
    if word[-1] == "z":
        return word[:-1] + "ces"
    if word[-2] in "áéíóú":  # ratón, ratones
        return word.translate(PLAIN) + "es"
    return word + "es"


def english_plural(word: str) -> str:
    if word in ENGLISH_PLURALS:
        return ENGLISH_PLURALS[word]
    return third_person(word)


def third_person(word: str) -> str:
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")


def doubles(base: str) -> bool:
    return base in {"run", "swim", "hug", "forget"}


def regular_past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if re.search(r"[^aeiou]y$", base):
        return base[:-1] + "ied"
    return base + (base[-1] if doubles(base) else "") + "ed"


def regular_ing(base: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if re.search(r"[^e]e$", base):
        return base[:-1] + "ing"
    return base + (base[-1] if doubles(base) else "") + "ing"


def begins_with_a_stressed_a(word: str) -> bool:
    """Whether a feminine noun takes el: á…, or a… in a word of two syllables stressed first."""
    if re.match(r"h?á", word):
        return True
    syllables = re.findall(r"[aeiou]+", word)
    return bool(re.match(r"h?a", word)) and word[-1] in "aeiou" and len(syllables) == 2


def rows(name: str) -> list[list[str]]:
    """A table of the book, read independently of the reader."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [[c.strip() for c in line.split("|")] for line in lines if line and line[0] != "#"]


def sentences(book: PhraseBook, english: str, spanish: str, slots: str) -> dict[str, str]:
    """Every sentence of a frame of our own with the book's words."""
    frame = Frame.of((english, spanish, slots), book.lexicon)
    return {pair.english: pair.spanish for pair in frame.every()}


def test_it_is_as_large_as_it_says(book: PhraseBook) -> None:
    assert len(book.lexicon.nouns) >= 300
    assert len(book.lexicon.adjectives) >= 100
    assert len(book.lexicon.verbs) >= 70
    assert len(book.frames) >= 120


class TestFormsByRule:
    def test_nouns_form_their_plural(self, book: PhraseBook) -> None:
        for noun in (noun for noun in book.lexicon.nouns if noun.counted):
            assert noun.spanish[1] == plural(noun.spanish[0]), noun.name
            assert noun.english[1] == english_plural(noun.english[0]), noun.name

    def test_nouns_have_the_gender_of_their_ending(self, book: PhraseBook) -> None:
        for noun in book.lexicon.nouns:
            word = noun.spanish[0]
            feminine = (
                word in FEMININE_IN_O | FEMININE_OTHERWISE
                or (word.endswith("a") and word not in MASCULINE_IN_A)
                or word.endswith(("ción", "dad"))
            )
            assert noun.gender == ("f" if feminine else "m"), word

    def test_feminine_nouns_with_a_stressed_a_are_marked_and_no_others(
        self, book: PhraseBook
    ) -> None:
        marked = {noun.spanish[0] for noun in book.lexicon.nouns if noun.stressed_a}
        assert marked == {"agua", "águila", "aula", "hacha", "arma"}
        for noun in book.lexicon.nouns:
            expected = noun.gender == "f" and begins_with_a_stressed_a(noun.spanish[0])
            assert noun.stressed_a == expected, noun.name

    def test_adjectives_agree(self, book: PhraseBook) -> None:
        for adjective in book.lexicon.adjectives:
            masculine, feminine, masculines, feminines = adjective.forms
            if masculine is None or feminine is None:
                continue
            ends_in_o = masculine.endswith("o")
            assert feminine == (masculine[:-1] + "a" if ends_in_o else masculine)
            assert (masculines, feminines) == (plural(masculine), plural(feminine))

    def test_short_forms_are_those_of_the_grammars(self, book: PhraseBook) -> None:
        short = {one.english: one.short for one in book.lexicon.adjectives if one.short}
        assert short == {
            "good": ("buen", "buena"),
            "bad": ("mal", "mala"),
            "great": ("gran", "gran"),
            "first": ("primer", "primera"),
            "third": ("tercer", "tercera"),
        }

    def test_verbs_are_conjugated(self, book: PhraseBook) -> None:
        for verb in book.lexicon.verbs:
            form, infinitive = verb.spanish, verb.spanish["to"]
            stem, vowel = infinitive[:-2], infinitive[-2]
            third = stem + ("a" if vowel == "a" else "e")
            assert form["she"] == THIRD.get(infinitive, third)
            assert form["they"] == form["she"] + "n"
            assert form["we"] == stem + vowel + "mos"
            assert form["i"] == I_DO.get(infinitive, form["she"][:-1] + "o")
            gerund = stem + ("ando" if vowel == "a" else "iendo")
            assert form["ing"] == GERUNDS.get(infinitive, gerund)

    def test_verbs_have_their_past(self, book: PhraseBook) -> None:
        for verb in (verb for verb in book.lexicon.verbs if "she past" in verb.spanish):
            infinitive, past = verb.spanish["to"], verb.spanish["she past"]
            stem, vowel = infinitive[:-2], infinitive[-2]
            assert past == PAST.get(infinitive, stem + ("ó" if vowel == "a" else "ió"))
            ending = {"ó": "aron" if vowel == "a" else "eron", "o": "eron"}[past[-1]]
            assert verb.spanish["they past"] == past[:-1] + ending

    def test_english_verbs_are_conjugated(self, book: PhraseBook) -> None:
        for verb in book.lexicon.verbs:
            base = verb.english["to"]
            assert verb.english["she"] == third_person(base)
            if "ing" in verb.english:
                assert verb.english["ing"] == regular_ing(base)
            if "she past" in verb.english:
                assert verb.english["she past"] == ENGLISH_PAST.get(base, regular_past(base))

    def test_no_word_of_english_is_two_nouns_adjectives_or_verbs(self, book: PhraseBook) -> None:
        for words in (
            [noun.name for noun in book.lexicon.nouns],
            [adjective.english for adjective in book.lexicon.adjectives],
            [verb.english["to"] for verb in book.lexicon.verbs],
        ):
            assert len(words) == len(set(words))

    def test_everything_that_stands_in_the_tables_occurs_in_sentences(
        self, book: PhraseBook, split: Split
    ) -> None:
        met = {
            word
            for pair in split.training
            for text in (pair.english, pair.spanish)
            for word in text.split()
        }
        lexicon = book.lexicon
        assert {noun.name for noun in lexicon.nouns} <= met
        assert {adjective.english for adjective in lexicon.adjectives} <= met
        assert {verb.english["to"] for verb in lexicon.verbs} <= met
        assert {word for word, _ in lexicon.small} <= met


class TestSentences:
    @pytest.mark.parametrize(
        ("english", "spanish", "slots", "expected"),
        [
            pytest.param(
                "[the A N] [is (N)] here",
                "[el N A] [está (N)] aquí",
                "N: water eagle; A of N: noun",
                {
                    "the cold water is here": "el agua fría está aquí",
                    "the strange eagles are here": "las águilas extrañas están aquí",
                },
                id="a stressed a takes el, its adjective stays feminine",
            ),
            pytest.param(
                "[the A N]",
                "[el N A]",
                "N: axe; A of N: noun",
                {"the good axe": "la buena hacha", "the new axe": "el hacha nueva"},
                id="la where an adjective stands between",
            ),
            pytest.param(
                "[this N] of [the M]",
                "[este N] de [el M]",
                "N: classroom; M: school hotel",
                {
                    "this classroom of the hotel": "esta aula del hotel",
                    "these classrooms of the schools": "estas aulas de las escuelas",
                },
                id="this stays feminine; de el is del",
            ),
            pytest.param(
                "[the same N] and [all the M]",
                "[el mismo N] y [todo el M]",
                "N: weapon; M many: eagle island",
                {"the same weapon and all the islands": "la misma arma y todas las islas"},
                id="determiners agree one by one",
            ),
            pytest.param(
                "it is [a A N]",
                "es [un N A]",
                "N one: book woman weapon; A of N: noun",
                {
                    "it is a good book": "es un buen libro",
                    "it is a great woman": "es una gran mujer",
                    "it is an old weapon": "es un arma vieja",
                    "it is a useful book": "es un libro útil",
                    "it is an honest woman": "es una mujer honesta",
                },
                id="apocope, place, a and an",
            ),
            pytest.param(
                "[the A N]",
                "[el N A]",
                "N: book; A of N: order",
                {"the first book": "el primer libro", "the third books": "los terceros libros"},
                id="the short form only in the singular",
            ),
            pytest.param(
                "[the N] and [the M] are A",
                "[el N] y [el M] están A",
                "N: queen; M: king mother; A of N + M: is estar",
                {
                    "the queen and the king are tired": "la reina y el rey están cansados",
                    "the queen and the mothers are tired": "la reina y las madres están cansadas",
                },
                id="masculine unless all are feminine",
            ),
            pytest.param(
                "[the N] [is (N)] A",
                "[el N] [es/está (N)] A",
                "N: wall soup; A of N: is",
                {
                    "the walls are white": "las paredes son blancas",
                    "the soup is cold": "la sopa está fría",
                },
                id="ser or estar by the adjective",
            ),
            pytest.param(
                "[the N] [V (N)] [the M]",
                "[el N] [V (N)] [a? el M]",
                "N: boy; M: dog ant door star; V of N M",
                {
                    "the boy sees the ant": "el niño ve la hormiga",
                    "the boy sees the dog": "el niño ve al perro",
                    "the boys see the dogs": "los niños ven a los perros",
                    "the boy opens the door": "el niño abre la puerta",
                    "the boy studies the stars": "el niño estudia las estrellas",
                },
                id="the personal a for whom the verb wants it",
            ),
        ],
    )
    def test_words_agree(
        self, book: PhraseBook, english: str, spanish: str, slots: str, expected: dict[str, str]
    ) -> None:
        made = sentences(book, english, spanish, slots)
        assert {text: made.get(text) for text in expected} == expected

    def test_y_and_o_give_way_before_their_own_sound(self, book: PhraseBook) -> None:
        made = sentences(book, "A and N", "[un N A] y N", "N one: island; A of N: noun")
        assert made["beautiful and island"] == "una isla hermosa e isla"
        made = sentences(book, "A or N", "A o N", "N one: eye; A of N: noun")
        assert made["blue or eye"] == "azul u ojo"
        made = sentences(book, "N and N", "N y N", "N one: ice")
        assert made["ice and ice"] == "hielo y hielo"

    def test_what_is_not_counted_takes_no_article_of_its_own(self, book: PhraseBook) -> None:
        made = sentences(book, "[a N]", "[un N]", "N: water table sky")
        assert made == {"a table": "una mesa"}

    def test_a_verb_without_the_form_is_passed_by(self, book: PhraseBook) -> None:
        made = sentences(book, "[V she past] N", "[V she past] N", "N one: book; V of person N")
        assert "bought book" in made
        assert not any(text.startswith("read") for text in made)

    def test_every_sentence_agrees_with_the_tables(self, book: PhraseBook) -> None:
        articles = {"m": ("el", "los"), "f": ("la", "las"), "f el": ("el", "las")}
        nouns = {one[0]: one for one in rows("nouns.txt")}
        adjectives = {one[0]: one for one in rows("adjectives.txt")}
        (frame,) = (one for one in book.frames if one.name == "[the N] [is (N)] A")
        pairs = list(frame.every())
        for pair in pairs:
            ((name, said),) = pair.combinations
            noun, adjective = nouns[name], adjectives[said]
            many = pair.english.split()[2] == "are"
            verb = {"ser": ("es", "son"), "estar": ("está", "están")}[adjective[5]][many]
            form = adjective[1 + 2 * many + (noun[4] != "m")]
            assert pair.english == f"the {noun[many]} {'are' if many else 'is'} {said}"
            assert pair.spanish == f"{articles[noun[4]][many]} {noun[2 + many]} {verb} {form}"
        assert len(pairs) > 5_000

    def test_one_english_sentence_has_one_translation(self, split: Split) -> None:
        found: dict[str, str] = {}
        for pair in (*split.training, *split.held_out):
            assert found.setdefault(pair.english, pair.spanish) == pair.spanish

    def test_texts_are_lower_case_words_with_single_spaces(self, split: Split) -> None:
        for pair in (*split.training, *split.held_out):
            assert re.fullmatch(r"[a-z]+( [a-z]+)*", pair.english), pair
            assert re.fullmatch(r"[a-záéíóúñ]+( [a-záéíóúñ]+)*", pair.spanish), pair
            assert not re.search(r"\b(a|de) el\b|\by (i|hi[^e])|\bo h?o", pair.spanish), pair
            assert not re.search(r"\ba (?!useful)[aeiou]|\ban (?!honest)[^aeiou]", pair.english)


class TestSplit:
    def test_the_sky_is_blue_is_held_out(self, split: Split) -> None:
        assert (split.held_out[0].english, split.held_out[0].spanish) == (
            "the sky is blue",
            "el cielo es azul",
        )
        assert all("sky is blue" not in pair.english for pair in split.training)
        assert all("cielo es azul" not in pair.spanish for pair in split.training)

    def test_five_hundred_combinations_are_held_out(self, split: Split) -> None:
        different = {(pair.frame, *pair.combinations) for pair in split.held_out}
        assert len(different) >= 450  # the rest differ in number alone
        assert len({pair.english for pair in split.held_out}) == len(split.held_out) == 500
        assert len({pair.frame for pair in split.held_out}) > 50
        assert all(split.combinations.intersection(pair.combinations) for pair in split.held_out)

    def test_held_out_nouns_and_adjectives_never_meet_in_training(self, split: Split) -> None:
        assert len(split.combinations) >= 500
        for pair in split.training:
            assert not split.combinations.intersection(pair.combinations), pair

    def test_training_names_every_combination_that_its_sentences_show(self, split: Split) -> None:
        """Independent of the record: no training sentence holds both words side by side."""
        nouns = {one[0]: set(one[:2]) for one in rows("nouns.txt")}
        apart = {
            f"{adjective} {form}" for noun, adjective in split.combinations for form in nouns[noun]
        }
        for pair in split.training:
            words = pair.english.split()
            together = {f"{one} {two}" for one, two in pairwise(words)}
            assert not together & apart, pair

    def test_an_adjective_is_said_of_every_noun_that_it_is_compared_by(
        self, book: PhraseBook
    ) -> None:
        cells = (
            "[the N] [is (N)] as A as [the M]",
            "[el N] [es/está (N)] tan A como [el M]",
            "N one: dog; M one: horse; A of N M: is very",
        )
        for pair in Frame.of(cells, book.lexicon).every():
            adjective = pair.english.split()[4]
            assert pair.combinations == (("dog", adjective), ("horse", adjective))

    def test_no_text_stands_on_both_sides(self, split: Split) -> None:
        for language in ("english", "spanish"):
            training = {getattr(pair, language) for pair in split.training}
            assert not training & {getattr(pair, language) for pair in split.held_out}

    def test_every_held_out_word_occurs_in_training(self, split: Split) -> None:
        for language in ("english", "spanish"):
            known = {word for pair in split.training for word in getattr(pair, language).split()}
            for pair in split.held_out:
                assert set(getattr(pair, language).split()) <= known

    def test_every_held_out_frame_noun_and_adjective_occurs_in_training(self, split: Split) -> None:
        assert {pair.frame for pair in split.held_out} <= {pair.frame for pair in split.training}
        for place in (0, 1):
            met = {one[place] for pair in split.training for one in pair.combinations}
            assert {one[place] for pair in split.held_out for one in pair.combinations} <= met

    def test_a_seed_gives_the_same_split_and_another_one_another(self, book: PhraseBook) -> None:
        def small(seed: int) -> Split:
            return book.split(seed, each=40, held_out=50)

        first = small(3)
        assert small(3) == first
        assert set(small(4).held_out) != set(first.held_out)

    def test_too_few_sentences_for_what_is_wanted_are_refused(self, book: PhraseBook) -> None:
        with pytest.raises(ArgumentError, match=r"each=2 leaves \d+ held-out pairs .* wanted 500"):
            book.split(0, each=2, held_out=500)


class TestWordByWord:
    def test_every_english_word_has_an_entry(self, book: PhraseBook, split: Split) -> None:
        dictionary = book.word_by_word(split.training)
        for pair in (*split.training, *split.held_out):
            assert set(pair.english.split()) <= dictionary.keys(), pair

    def test_words_get_their_most_usual_form(self, book: PhraseBook, split: Split) -> None:
        dictionary = book.word_by_word(split.training)
        assert [dictionary[word] for word in ("sky", "is", "blue")] == ["cielo", "es", "azul"]
        assert dictionary["houses"] == "casas"
        assert dictionary["sees"] == "ve"
        assert dictionary["does"] == "hace"
        assert dictionary["it"] == ""

    def test_it_cannot_agree(self, book: PhraseBook, split: Split) -> None:
        dictionary = book.word_by_word(split.training)
        translations = {pair.spanish.split()[0] for pair in split.training}
        assert {"el", "la", "los", "las"} <= translations
        assert dictionary["the"] in {"el", "la"}  # one of them, whatever the noun
        assert dictionary["white"] in {"blanco", "blanca"}

    def test_what_is_met_most_often_wins(self, book: PhraseBook, split: Split) -> None:
        feminine = [pair for pair in split.training if "blanca" in pair.spanish.split()]
        assert book.word_by_word(feminine)["white"] == "blanca"


class TestBadLines:
    @pytest.mark.parametrize(
        ("file", "line", "message"),
        [
            ("nouns.txt", "pea | peas | guisante", "3 columns, wanted 6"),
            ("nouns.txt", "pea | | guisante | guisantes | m | food", "column 2 is empty"),
            ("nouns.txt", "pea | peas | guisante | guisantes | x | food", "gender is 'x'"),
            ("nouns.txt", "pea | peas | guisante | - | m | food", "a plural in one language"),
            ("nouns.txt", "pea | peas | guisante | guisantes | m | foot", "'foot' is not in"),
            ("nouns.txt", "sky | - | cielo | - | m | food", "the noun 'sky' is there already"),
            ("nouns.txt", "food | - | comida | - | f | food", "has the name of a class"),
            (
                "adjectives.txt",
                "calm | a | a | a | a | be | after | - | is | person",
                "verb is 'be'; wanted one of ser, estar, -",
            ),
            (
                "adjectives.txt",
                "calm | a | a | a | a | ser | after | - | noun | person",
                "a verb (ser, estar) and the use 'is' go together",
            ),
            (
                "adjectives.txt",
                "calm | a | a | a | a | ser | after | - | is | persons",
                "'persons' is neither a class nor a noun",
            ),
            ("determiners.txt", "- | - | el | la | - | - | - | all", "no form at all"),
            ("sounds.txt", "hour | one", "article is 'one'; wanted one of a, an"),
            ("frames.txt", "[the N | [el N] | N: person", "has no partner"),
            ("frames.txt", "[thy N] | [el N] | N: person", "'thy' in brackets is no word"),
            ("frames.txt", "[the N] | [él N] | N: person", "'él' in brackets is no word"),
            ("frames.txt", "[the N] A | [el N] | N: person; A of N: is", "wanted the same"),
            ("frames.txt", "[the N] | [el N] | N: persons", "'persons' is neither"),
            ("frames.txt", "[the N] A | [el N] A | N: book; A of M: is", "no slot M"),
            ("frames.txt", "[the N] A | [el N] A | N: book; A of N: red", "use 'red'"),
            ("frames.txt", "[the N] | [el N] | N some: book", "wanted N, N one or N many"),
            ("frames.txt", "[the N] | [el N] | X: book", "slot 'X: book'"),
            ("frames.txt", "[the N M] | [el N] | N: book; M: book", "names 2 nouns"),
            ("frames.txt", "[the N] | [el N] | N many: water", "no words of the book fit"),
            ("frames.txt", "[is (N)] N | [es/está (N)] N | N: book", "es/está wants an adjective"),
            ("held_out.txt", "sky | tired | [the N] [is (N)] A", "says 'tired' of 'sky'"),
        ],
    )
    def test_a_bad_line_is_named_by_file_and_line(
        self, tmp_path: Path, file: str, line: str, message: str
    ) -> None:
        path = self._copy(tmp_path) / file
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}{line}\n", encoding="utf-8")
        number = len(text.splitlines()) + 1
        with pytest.raises(FileError, match=re.escape(f"{path}:{number}: ")) as raised:
            PhraseBook.read(path.parent)
        assert message in str(raised.value)

    def test_all_bad_lines_are_named_at_once(self, tmp_path: Path) -> None:
        folder = self._copy(tmp_path)
        for file in ("nouns.txt", "verbs.txt"):
            path = folder / file
            path.write_text(path.read_text(encoding="utf-8") + "one\ntwo\n", encoding="utf-8")
        with pytest.raises(FileError) as raised:
            PhraseBook.read(folder)
        assert [line.split(":")[0] for line in str(raised.value).splitlines()] == [
            str(folder / "nouns.txt")
        ] * 2 + [str(folder / "verbs.txt")] * 2

    def test_a_missing_table_is_named(self, tmp_path: Path) -> None:
        folder = self._copy(tmp_path)
        (folder / "verbs.txt").unlink()
        with pytest.raises(FileError, match=r"verbs\.txt cannot be read: No such file"):
            PhraseBook.read(folder)

    def test_bytes_that_are_no_text_are_named_by_their_line(self, tmp_path: Path) -> None:
        folder = self._copy(tmp_path)
        (folder / "words.txt").write_bytes(b"a | un\nyear | a\xf1o\n")
        with pytest.raises(FileError, match=r"words\.txt:2: byte 15 is not UTF-8"):
            PhraseBook.read(folder)

    @staticmethod
    def _copy(tmp_path: Path) -> Path:
        """A copy of the book with its first frame alone, which is read quickly."""
        folder = Path(shutil.copytree(FOLDER, tmp_path / "book"))
        frames = (folder / "frames.txt").read_text(encoding="utf-8").splitlines()
        first = next(line for line in frames if line and not line.startswith("#"))
        (folder / "frames.txt").write_text(f"# shorter\n{first}\n", encoding="utf-8")
        return folder

"""An empty recording says what came nearest."""

from qkv.recording.calls.place import Place
from qkv.recording.observing.misses import KEPT, Misses

PLACE = Place("layer.0", "model.py", 7)


def test_nothing_at_all_is_said_plainly() -> None:
    assert Misses().text() == "no softmax ran"


def test_a_miss_says_what_where_and_why() -> None:
    misses = Misses()
    misses.add("softmax", PLACE, (2, 5, 5), "it was rolled")
    assert misses.text() == "softmax (2, 5, 5): it was rolled (model.py:7 in layer.0)"
    misses.add("softmax", PLACE, (2, 5, 5), "it was rolled")
    assert misses.text().endswith("layer.0), 2 times")


def test_places_outside_of_modules_and_in_the_model_itself_read_well() -> None:
    misses = Misses()
    misses.add("exp", Place(None, "a.py", 1), (), "why")
    misses.add("exp", Place("", "a.py", 2), (), "why")
    assert misses.text() == "exp: why (a.py:1)\nexp: why (a.py:2 in the model itself)"


def test_classifiers_are_quiet_where_something_came_nearer() -> None:
    misses = Misses()
    misses.add("softmax", PLACE, (2, 9), "no product before it", near=False)
    assert misses.text().splitlines() == [
        "no softmax fed a product",
        "softmax (2, 9): no product before it (model.py:7 in layer.0)",
    ]
    misses.opaque["flash.attend"] += 2
    assert misses.text() == "flash.attend, 2 times (nothing can be seen inside this operation)"


def test_notes_follow_once_each() -> None:
    misses = Misses()
    misses.note("compiled")
    misses.note("compiled")
    assert misses.text() == "no softmax ran\ncompiled"


def test_misses_do_not_grow_without_end() -> None:
    misses = Misses()
    for length in range(KEPT + 50):
        misses.add("softmax", PLACE, (length,), "why")
    assert len(misses.near) == KEPT
    assert misses.text(limit=3).splitlines()[-1] == f"and {KEPT - 3} more"

"""The history of translation: every system on the same sentences, trained once and not again."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from qkv.errors import ArgumentError
from qkv.models.translating import Translator
from qkv.train.tasks.translate import Translate
from qkv.train.translation import history
from qkv.train.translation.history import History, Outcome, summaries
from qkv.train.translation.systems import SYSTEMS, Sizes

pytestmark = pytest.mark.slow

SMALL = Sizes(vocabulary=600, width=16, layers=1, heads=2, hidden=24)
FEW = replace(Translate.usual, steps=2, batch=300, warmup=1, measure_every=1, save_every=1)

NOUNS = {"cat": "gato", "dog": "perro", "boy": "niño", "horse": "caballo", "bird": "pájaro"}
VERBS = {"sees": "ve", "hears": "oye", "follows": "sigue", "finds": "encuentra"}


def sentences(long: bool = False) -> list[str]:
    """Rows of a small language: short sentences, or two of them joined."""
    short = [
        (f"the {a} {v} the {b}", f"el {NOUNS[a]} {VERBS[v]} al {NOUNS[b]}")
        for a in NOUNS for v in VERBS for b in NOUNS
    ]  # fmt: skip
    pairs = [
        (f"{a} but {b}", f"{c} pero {d}")
        for (a, c), (b, d) in zip(short, short[7:] + short[:7], strict=True)
    ]
    return [f"{source}\t{target}" for source, target in (pairs if long else short)]


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("history")
    (folder / "data.tsv").write_text("\n".join([*sentences(), *sentences(long=True)]), "utf-8")
    return History(folder / "out", [str(folder / "data.tsv")], sizes=SMALL)


@pytest.fixture(scope="module")
def outcomes(past: History) -> list[Outcome]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "FEWEST", 3)
        return past.run(FEW, seeds=2)


def test_every_system_is_measured_with_every_seed(past: History, outcomes: list[Outcome]) -> None:
    systems = ["dictionary", "single", "additive", "dot", "transformer"]
    assert [(one.seed, one.system) for one in outcomes] == [
        (seed, system) for seed in range(2) for system in systems
    ]
    for one in outcomes:
        assert one.sentences == 20
        assert set(one.overall) == {"chrf", "bleu", "exact"}
        assert set(one.by_length) == {"1–5", "11–20"}
        assert one.steps == (0 if one.system == "dictionary" else 2)
    assert sorted(path.name for path in past.folder("dot", 1).parent.iterdir()) == sorted(SYSTEMS)


def test_the_dictionary_beats_what_has_learnt_for_two_steps(outcomes: list[Outcome]) -> None:
    for seed in range(2):
        first, *others = [one for one in outcomes if one.seed == seed]
        assert first.overall["chrf"] > 40
        assert all(one.overall["chrf"] < first.overall["chrf"] for one in others)


def test_what_is_measured_followed_several_beginnings(
    past: History, outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[int] = []
    translate = Translator.translate

    def noted(model: Translator, texts: list[str], **options: Any) -> Any:
        followed.append(options["beams"])
        return translate(model, texts, **options)

    monkeypatch.setattr(Translator, "translate", noted)
    assert len(past.run(FEW, seeds=1)) == 1 + len(SYSTEMS)
    assert followed == [4] * len(SYSTEMS)


def test_no_system_is_chosen_by_what_it_is_measured_with(
    past: History, outcomes: list[Outcome]
) -> None:
    for seed in range(2):
        for system in SYSTEMS:
            log = json.loads((past.folder(system, seed) / "training.json").read_text("utf-8"))
            assert log["settings"]["measure_every"] == log["settings"]["steps"] == 2
            assert log["result"]["best_step"] == 2


def test_what_is_finished_is_not_trained_again(past: History, outcomes: list[Outcome]) -> None:
    events = []
    again = past.run(FEW, seeds=1, watch=lambda system, seed: events.append)
    kinds = {type(event).__name__ for event in events}
    assert "Stepped" not in kinds
    for one, before in zip(again[1:], outcomes[1:5], strict=True):
        assert one.overall == before.overall
        assert one.seconds == pytest.approx(before.seconds, abs=5)


def test_other_settings_are_refused_by_name(past: History, outcomes: list[Outcome]) -> None:
    with pytest.raises(ArgumentError, match="batch"):
        past.run(replace(FEW, batch=301))


def test_a_summary_is_mean_and_spread_over_seeds(outcomes: list[Outcome]) -> None:
    summed = summaries(outcomes)
    assert [one.system for one in summed] == ["dictionary", *SYSTEMS]
    for one in summed:
        values = [o.overall["bleu"] for o in outcomes if o.system == one.system]
        assert one.overall["bleu"] == pytest.approx((mean(values), stdev(values)))
    single = summaries(outcomes[:5])[0]
    assert single.overall["chrf"] == (outcomes[0].overall["chrf"], 0.0)


def test_no_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="seeds is 0; wanted 1 or more"):
        History(tmp_path / "none").run(FEW, seeds=0)
    assert not (tmp_path / "none").exists()

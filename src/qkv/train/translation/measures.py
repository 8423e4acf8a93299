"""How good translations are: the share that is exactly right, BLEU and chrF."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from qkv.errors import MissingPackageError


def check_package() -> None:
    """Raise MissingPackageError where sacrebleu, which measures, is not installed."""
    if find_spec("sacrebleu") is None:
        raise MissingPackageError(
            "translations are measured by sacrebleu, which is not installed: "
            "pip install 'qkv[train]'"
        )


def measured(found: Sequence[str], wanted: Sequence[str]) -> Mapping[str, float]:
    """Return chrF (Popović 2015), BLEU (Papineni et al. 2002; Post 2018) and the exact share.

    Args:
        found: translations.
        wanted: what they ought to be, spelled alike.
    """
    check_package()
    from sacrebleu import corpus_bleu, corpus_chrf

    references = [list(wanted)]
    exact = sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)
    return {
        "chrf": float(corpus_chrf(list(found), references).score),
        "bleu": float(corpus_bleu(list(found), references).score),
        "exact": exact,
    }

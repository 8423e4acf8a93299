"""The learning rate over the steps: warm-up, then half a cosine."""

import math

from qkv.train.settings import Settings


def learning_rate(step: int, settings: Settings) -> float:
    """Return the learning rate of a step.

    η · t/w                                              in the warm-up, t ≤ w
    η · (m + (1 − m)(1 + cos π(t − w)/(T − w))/2)        then; Loshchilov and Hutter 2017, eq. 5

    Args:
        step: from 0 on; t = step + 1 is the change of the weights that it makes.
        settings: η is `learning_rate`, w `warmup`, T `steps`, m `final_share`.
    """
    t, w, T = step + 1, settings.warmup, settings.steps
    if t <= w:
        return settings.learning_rate * t / w
    m = settings.final_share
    return settings.learning_rate * (m + (1 - m) * (1 + math.cos(math.pi * (t - w) / (T - w))) / 2)

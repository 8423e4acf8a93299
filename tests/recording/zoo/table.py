"""The whole table."""

from tests.recording.zoo.decoders import DECODERS
from tests.recording.zoo.encoders import ENCODERS
from tests.recording.zoo.not_plain import NOT_PLAIN
from tests.recording.zoo.senses import SENSES
from tests.recording.zoo.translators import TRANSLATORS

ARCHITECTURES = (*ENCODERS, *DECODERS, *TRANSLATORS, *SENSES)

__all__ = ["ARCHITECTURES", "NOT_PLAIN"]

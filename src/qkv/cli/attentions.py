"""Which attention a program used, and where: module, source, sizes, mask, and how true it is."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import ceil, isfinite
from typing import Any

from rich.text import Text

from qkv.recording.calls.call import Call
from qkv.recording.calls.place import Place
from qkv.recording.recording import Recording
from qkv.show.labels import fitted, legible

TRUE = 64.0
"""Up to so many eps of the output's scale a recomputation is as good as any."""

MARGIN = " " * 5
"""Below the number of an attention."""

PATHS = 6
"""Paths of a group that are listed; of more, the first and the last."""


@dataclass(frozen=True)
class Facts:
    """What is the same for all attentions of a group.

    Attributes:
        file, line: where in the source it ran.
        how: "written out", or the name of the fused operation.
        kind: self, cross or unknown.
        batch, heads, kv_heads, queries, keys, d_k, d_v: sizes of its first call.
        scale: None where heads or queries have their own.
        softcap: None where there is none.
        dropout: probability.
        sinks: whether some weight goes to what gives nothing.
        mask: who may not look at whom, in words.
    """

    file: str
    line: int
    how: str
    kind: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d_k: int
    d_v: int
    scale: float | None
    softcap: float | None
    dropout: float
    sinks: bool
    mask: str

    @classmethod
    def of(cls, call: Call, kind: str) -> "Facts":
        """Look at one call, whose kind is known of all calls of its module."""
        q, k, v = call.q.shape, call.k.shape, call.v.shape
        return cls(
            call.file, call.line, call.how, kind,
            q[0], q[1], k[1], q[2], k[2], q[3], v[3],
            _number(call.scale), _number(call.softcap), call.dropout, call.sinks is not None,
            str(call.blocking),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention of a program.

    Attributes:
        number: in the order in which they ran first, from 1.
        path: of its module; of one that attends several times in a run also which time.
        call: the first of its calls, or those of a generation in one.
        count: calls that there were.
        kind: self or cross, where one of its calls says so.
        generation: whether the call joins the steps of a generation.
    """

    number: int
    path: str
    call: Call
    count: int
    kind: str
    generation: bool

    @cached_property
    def facts(self) -> Facts:
        """What it is."""
        return Facts.of(self.call, self.kind)

    @cached_property
    def error(self) -> tuple[float, float] | None:
        """How far it is from what the program went on with: of the output's scale, and in eps.

        None where a fused operation dropped weights and keeps to itself which, and where numbers
        are no numbers (NaN).
        """
        error, eps = float(self.call.error), float(self.call.error_eps)
        return (error, eps) if isfinite(error) else None

    def plain(self) -> dict[str, Any]:
        """Return it as a dict."""
        error, eps = self.error or (None, None)
        return {
            "attention": self.number, "path": self.path, "calls": self.count,
            **asdict(self.facts), "error": error, "error_eps": eps,
        }  # fmt: skip


def attentions_of(seen: Recording, counts: Mapping[Place, int] | None = None) -> list[Attention]:
    """Return what ran, in order: of each module its first call, or its first generation.

    Args:
        seen: what was recorded.
        counts: how often each attended, where not every call was kept.

    Raises:
        RecordingError: nothing was recorded.
    """
    counts = Counter(call.place for call in seen) if counts is None else counts
    alone = set(seen)
    found: dict[tuple[Place, int], list[Call]] = {}
    for call in seen.joined():
        # outside of every module there is no forward within which calls could be numbered
        found.setdefault((call.place, 0 if call.path is None else call.index), []).append(call)
    times = Counter(place for place, _ in found)
    return [
        Attention(
            number, _named(calls[0], times[place]), calls[0], counts[place] // times[place],
            next((call.kind for call in calls if call.kind != "unknown"), "unknown"),
            calls[0] not in alone,
        )
        for number, ((place, _), calls) in enumerate(found.items(), start=1)
    ]  # fmt: skip


def described(attentions: Sequence[Attention], width: int) -> Iterator[Text]:
    """Yield what is to say of all attentions: those that are alike one below the other."""
    groups: dict[Facts, list[Attention]] = {}
    for one in attentions:
        groups.setdefault(one.facts, []).append(one)
    for number, (facts, alike) in enumerate(groups.items()):
        if number:
            yield Text()
        yield from _paths(alike, width)
        for line in _in_words(facts):
            yield Text(f"{MARGIN}{legible(line)}")
        yield _truth(alike)


def _paths(alike: Sequence[Attention], width: int) -> Iterator[Text]:
    shown: Sequence[Attention | None] = alike
    if len(alike) > PATHS:
        shown = (alike[0], None, alike[-1])
    for one in shown:
        if one is None:
            yield Text(f"   … {len(alike) - 2} more", "dim")
            continue
        times = f"   {counted(one.count, 'call')}" if one.count > 1 else ""
        line = Text(f"{one.number:>3}  ", "bold")
        line.append(fitted(one.path, max(20, width - 5 - len(times))).rstrip(), "bold cyan")
        yield line.append(times, "dim")


def _in_words(facts: Facts) -> Iterator[str]:
    yield f"{short(facts.file)}:{facts.line}, {facts.how}"
    heads = counted(facts.heads, "head")
    if facts.kv_heads != facts.heads:
        heads += f" ({facts.kv_heads} of keys and values)"
    width = str(facts.d_k) if facts.d_k == facts.d_v else f"{facts.d_k}, values {facts.d_v}"
    looks = f"{looking(facts.queries)} at {counted(facts.keys, 'key')}"
    batch = f", {facts.batch} examples at once" if facts.batch > 1 else ""
    kind = "attention" if facts.kind == "unknown" else f"{facts.kind}-attention"
    yield f"{kind}, {heads} of {width}; {looks}{batch}"
    more = [f"mask: {facts.mask}"]
    more.append("scales of their own" if facts.scale is None else f"scale {facts.scale:.4g}")
    if facts.softcap is not None:
        more.append(f"soft cap {facts.softcap:.4g}")
    if facts.sinks:
        more.append("sinks")
    if facts.dropout:
        more.append(f"dropout {facts.dropout:.4g}")
    yield "; ".join(more)


def _truth(alike: Sequence[Attention]) -> Text:
    """How far the recomputation is from what the program went on with."""
    known = [one.error for one in alike if one.error is not None]
    if len(known) < len(alike):
        dropped = "which weights were dropped is not known"
        why = dropped if any(one.facts.dropout for one in alike) else "there is NaN or ∞ in it"
        return Text(f"{MARGIN}not recomputed: {why}", "yellow")
    error, eps = max(known, key=lambda pair: pair[1])
    if error == 0:
        return Text(f"{MARGIN}recomputed bit for bit", "green")
    if eps <= TRUE:
        said = f"recomputed within {ceil(eps)} eps of the output's scale"
        return Text(f"{MARGIN}{said} ({error:.1e})", "green")
    said = f"NOT what the program computed: {error:.1e} of the output's scale apart"
    return Text(f"{MARGIN}{said} ({eps:.0f} eps)", "bold red")


def counted(number: int, noun: str) -> str:
    """Return "1 call", "2 calls", "1,000 calls"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def looking(queries: int) -> str:
    """Return "1 query looks", "2 queries look"."""
    return "1 query looks" if queries == 1 else f"{queries:,} queries look"


def _named(call: Call, times: int) -> str:
    """Name a module; of one that attends several times in a run also which time."""
    path = call.path or ("the model itself" if call.path == "" else "(in no module)")
    return f"{path}[{call.index}]" if times > 1 else path


def short(file: str) -> str:
    """Return a source file as a person calls it."""
    folders = sorted((os.path.join(x, "") for x in sys.path if os.path.isabs(x)), key=len)
    for folder in reversed(folders):  # the innermost: what is left is as it is imported
        if file.startswith(folder):
            return file.removeprefix(folder)
    try:
        near = os.path.relpath(file)
    except ValueError:  # on another drive
        return file
    return file if near.startswith(os.pardir) else near


def _number(x: Any) -> float | None:
    return x if isinstance(x, float | int) else None

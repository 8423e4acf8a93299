"""A small canvas that writes SVG: boxes, texts, arrows; colours for light and for dark."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from rich.cells import cell_len

NAME, LINE = 15, 13
"""Heights of letters in pixels."""

NARROW, BROAD = frozenset(" fijlt.,;:'!|-()[]I"), frozenset("mwMW&@%→×")
LETTER = 0.64
"""How wide a letter is for its height, in the widest of the fonts below."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

LIGHT = {
    "paper": "#ffffff", "text": "#0f172a", "quiet": "#475569", "line": "#64748b",
    "frame": "#f8fafc", "box": "#f1f5f9", "table": "#fff7ed", "table-line": "#c2740c",
    "self": "#dbeafe", "self-ink": "#1d4ed8", "masked": "#fae8ff", "masked-ink": "#a21caf",
    "cross": "#dcfce7", "cross-ink": "#15803d",
}  # fmt: skip
DARK = {
    "paper": "#0f172a", "text": "#f1f5f9", "quiet": "#cbd5e1", "line": "#94a3b8",
    "frame": "#162036", "box": "#1e293b", "table": "#33230f", "table-line": "#fdba74",
    "self": "#172f5c", "self-ink": "#7cb3ff", "masked": "#431247", "masked-ink": "#f08bfb",
    "cross": "#0f3d22", "cross-ink": "#4ade80",
}  # fmt: skip

STYLES = """
text {{ font-family: {font}; fill: {text}; }}
.title {{ font-size: 24px; font-weight: 700; }}
.tower {{ font-size: 18px; font-weight: 700; }}
.name {{ font-size: {name}px; font-weight: 600; }}
.line {{ font-size: {line_size}px; font-weight: 400; fill: {quiet}; }}
.number {{ font-size: {line_size}px; text-anchor: end; font-variant-numeric: tabular-nums; }}
.small {{ font-size: 12px; fill: {cross-ink}; text-anchor: middle; }}
.rule {{ fill: {line}; opacity: 0.4; }}
.paper {{ fill: {paper}; }}
.frame {{ fill: {frame}; stroke: {line}; stroke-width: 1.5; }}
.input, .output, .norm, .add, .add-norm, .feed-forward {{ fill: {box}; stroke: {line}; }}
.embedding, .positions {{ fill: {table}; stroke: {table-line}; }}
.self {{ fill: {self}; stroke: {self-ink}; stroke-width: 2; }}
.masked {{ fill: {masked}; stroke: {masked-ink}; stroke-width: 2; }}
.cross {{ fill: {cross}; stroke: {cross-ink}; stroke-width: 2; }}
.ink-self {{ fill: {self-ink}; }}
.ink-masked {{ fill: {masked-ink}; }}
.ink-cross {{ fill: {cross-ink}; }}
.hidden {{ fill: none; stroke: {masked-ink}; stroke-width: 1; }}
.way, .skip {{ fill: none; stroke: {line}; stroke-width: 1.5; }}
.bridge {{ fill: none; stroke: {cross-ink}; stroke-width: 3; }}
.head {{ fill: {line}; }}
.head-bridge {{ fill: {cross-ink}; }}
"""


class Canvas:
    """What is drawn, in the order in which it is drawn."""

    def __init__(self) -> None:
        """Start empty."""
        self._drawn: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, style: str, *, radius: int = 8
    ) -> None:
        """Draw a rectangle with round corners."""
        size = f'width="{width:g}" height="{height:g}" rx="{radius}"'
        self._drawn.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" {size}/>')

    def cell(self, x: float, y: float, side: float, style: str) -> None:
        """Draw a small square."""
        self.box(x, y, side, side, style, radius=1)

    def text(self, x: float, y: float, content: str, style: str, *, then: str = "") -> None:
        """Write text, and what follows it quietly; what comes from outside is escaped here."""
        more = f' <tspan class="line" dx="4">{escaped(then)}</tspan>' if then else ""
        at = f'class="{style}" x="{x:g}" y="{y:g}"'
        self._drawn.append(f"<text {at}>{escaped(content)}{more}</text>")

    def arrow(self, points: Sequence[tuple[float, float]], style: str = "way") -> None:
        """Draw a line through points, each piece upright or level; a head at the last one."""
        (x0, y0), (x, y) = points[-2:]
        size = 6 if style == "bridge" else 4
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        back = [*points[:-1], (x - 2 * size * dx, y - 2 * size * dy)]
        path = " ".join(f"{px:g},{py:g}" for px, py in back)
        self._drawn.append(f'<polyline class="{style}" points="{path}" stroke-linejoin="round"/>')
        left = (x - 2 * size * dx + size * dy, y - 2 * size * dy + size * dx)
        right = (x - 2 * size * dx - size * dy, y - 2 * size * dy - size * dx)
        head = " ".join(f"{px:g},{py:g}" for px, py in ((x, y), left, right))
        kind = "head-bridge" if style == "bridge" else "head"
        self._drawn.append(f'<polygon class="{kind}" points="{head}"/>')

    def document(self, width: float, height: float, title: str, description: str) -> str:
        """Return the whole as an SVG document that follows the reader's light or dark."""
        fixed = {"font": FONT, "name": NAME, "line_size": LINE}
        light, dark = (STYLES.format(**(fixed | colours)) for colours in (LIGHT, DARK))
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escaped(title)}</title>',
            f'<desc id="desc">{escaped(description)}</desc>',
            f"<style>{light}@media (prefers-color-scheme: dark) {{{dark}}}\n</style>",
            f'<rect class="paper" width="{width:g}" height="{height:g}" rx="0"/>',
            *self._drawn,
            "</svg>\n",
        ])  # fmt: skip


def escaped(content: str) -> str:
    """Return text as XML has it; what cannot be printed, and XML does not know, is a mark."""
    return escape("".join(c if c.isprintable() else "�" for c in content))


def wide(content: str, size: float, *, bold: bool = False) -> float:
    """Return how many pixels a text takes at most; an estimate, as fonts differ."""
    return sum(map(_letter, content)) * size * (1.08 if bold else 1.0)


def _letter(letter: str) -> float:
    if letter in NARROW:
        return 0.4
    return 0.97 if letter in BROAD else LETTER * cell_len(letter)


def broken(content: str, width: float, size: float) -> list[str]:
    """Return text in lines that are no wider than that, broken between words where it can be."""
    lines = [""]
    for word in content.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if wide(longer, size) <= width:
            lines[-1] = longer
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = lines[-1] or word
        while len(lines[-1]) > 1 and wide(lines[-1], size) > width:
            fits = next(
                n for n in range(len(lines[-1]), 0, -1) if _fits(lines[-1][:n], width, size)
            )
            lines[-1:] = [lines[-1][:fits], lines[-1][fits:]]
    return lines


def _fits(content: str, width: float, size: float) -> bool:
    return len(content) == 1 or wide(content, size) <= width


def cut(content: str, width: float, size: float) -> str:
    """Return the beginning of a text that is too wide, and an ellipsis."""
    if wide(content, size, bold=True) <= width:
        return content
    while content and wide(content + "…", size, bold=True) > width:
        content = content[:-1]
    return content + "…"

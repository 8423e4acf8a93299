"""The map of a model as SVG: hand-written, light and dark, readable at 800 pixels."""

from collections.abc import Iterator
from dataclasses import dataclass

from qkv.show.architecture import (
    ATTENTION,
    NOTE,
    Architecture,
    Kind,
    Part,
    Tower,
    counted,
    headline,
    kept,
)
from qkv.show.svg import LINE, NAME, Canvas, broken, cut, wide

WIDTH = 800
MARGIN = 20
BETWEEN = 110
"""Pixels between two towers, where the bridge is."""

SINGLE = 440
"""Pixels of a tower that stands by itself."""

LEFT, RIGHT = 14, 36
"""From the frame of the layers to their boxes; what skips a part runs at the right."""

STEP = 24
"""From one box to the next."""

STRIP = 34
"""Over the layers, within their frame: how many there are."""

HEAD = 92
PADDING = 12
ICON = 56
"""What the picture of an attention takes of its box."""

FLAT = (Kind.NORM, Kind.ADD, Kind.ADD_NORM)
"""Parts of one line."""


@dataclass(frozen=True)
class Placed:
    """A part and where its box is."""

    part: Part
    x: float
    y: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """Where it ends."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """Half of its height."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Plan:
    """A tower with places: boxes from the bottom upwards, and the frame of the layers."""

    tower: Tower
    x: float
    width: float
    boxes: tuple[Placed, ...]
    layer: tuple[Placed, ...]
    top: float

    @property
    def axis(self) -> float:
        """Where arrows run."""
        return self.boxes[0].x + self.boxes[0].width / 2

    @property
    def frame(self) -> tuple[float, float]:
        """The upper and the lower edge of the layers' frame."""
        return self.layer[-1].y - STRIP, self.layer[0].bottom + STEP


def svg(architecture: Architecture) -> str:
    """Return the map as one SVG document; every text in it is escaped."""
    towers = architecture.towers
    each = SINGLE if len(towers) == 1 else (WIDTH - 2 * MARGIN - BETWEEN) / 2
    start = (WIDTH - SINGLE) / 2 if len(towers) == 1 else MARGIN
    floor = HEAD + max(_height(tower, each) for tower in towers)
    plans = [
        _plan(tower, start + i * (each + BETWEEN), each, floor) for i, tower in enumerate(towers)
    ]
    canvas = Canvas()
    _head(canvas, architecture)
    for plan in plans:
        _draw(canvas, plan, sends=len(plans) == 2 and plan.tower.name == "encoder")
    if len(plans) == 2:
        _bridge(canvas, *plans)
    bottom = _foot(canvas, architecture, floor + 70)
    return canvas.document(WIDTH, bottom, _title(architecture), _description(architecture))


def _title(architecture: Architecture) -> str:
    return f"Architecture map of {architecture.name}"


def _description(architecture: Architecture) -> str:
    """The whole map in words, for whoever cannot see it."""
    said = [headline(architecture) + "."]
    for tower in architecture.towers:
        said.append(f"The {tower.name} has {tower.layers} layers, each from the bottom upwards:")
        said.append(", ".join(part.name for part in tower.layer) + ".")
    return " ".join(said)


def _lines(part: Part, width: float) -> list[str]:
    """What is said in a box, in lines that fit it."""
    if part.kind in FLAT:
        return []
    room = width - 2 * PADDING - (ICON if part.kind in ATTENTION else 0)
    return [piece for line in part.says for piece in broken(line, room, LINE)]


def _tall(part: Part, width: float) -> float:
    if part.kind in FLAT:
        return 32
    lines = len(_lines(part, width)) + (not _beside(part, width))
    return max(34 + 18 * lines, 66 if part.kind in ATTENTION else 0)


def _beside(part: Part, width: float) -> bool:
    """Whether the number of parameters fits beside the name."""
    room = width - 3 * PADDING - (ICON if part.kind in ATTENTION else 0)
    taken = wide(part.name, NAME, bold=True) + wide(counted(part.parameters), LINE)
    return not part.parameters or taken <= room


def _height(tower: Tower, width: float) -> float:
    inner = width - LEFT - RIGHT
    parts = (*tower.below, *tower.layer, *tower.above)
    boxes = sum(_tall(part, inner) for part in parts)
    steps = STEP * (len(parts) + 1)
    return boxes + steps + STRIP + 40


def _plan(tower: Tower, x: float, width: float, floor: float) -> Plan:
    y, inner = floor, width - LEFT - RIGHT
    boxes: list[Placed] = []
    for group in (tower.below, tower.layer, tower.above):
        for part in group:
            height = _tall(part, inner)
            boxes.append(Placed(part, x + LEFT, y - height, inner, height))
            y -= height + STEP
        if group is tower.below:
            y -= STEP  # the edge of the frame, and where the first part is skipped from
        elif group is tower.layer:
            y -= STRIP
    count = len(tower.below)
    layer = boxes[count : count + len(tower.layer)]
    return Plan(tower, x, width, tuple(boxes), tuple(layer), boxes[-1].y)


def _head(canvas: Canvas, architecture: Architecture) -> None:
    name = cut(architecture.name, WIDTH - 2 * MARGIN, 24)
    canvas.text(MARGIN, 40, name, "title")
    canvas.text(MARGIN, 64, cut(headline(architecture), WIDTH - 2 * MARGIN, 14), "line")


def _draw(canvas: Canvas, plan: Plan, *, sends: bool) -> None:
    """Frame, arrows, what is skipped, boxes; last the tower's name over it."""
    upper, lower = plan.frame
    canvas.box(plan.x, upper, plan.width, lower - upper, "frame", radius=16)
    layers = "layer" if plan.tower.layers == 1 else "layers"
    canvas.text(plan.x + LEFT, upper + 22, f"{counted(plan.tower.layers)} {layers} ×", "name")
    each = f"{counted(plan.tower.layer_parameters)} each"
    canvas.text(plan.x + plan.width - LEFT, upper + 22, each, "number")
    for below, above in zip(plan.boxes, plan.boxes[1:], strict=False):
        canvas.arrow([(plan.axis, below.y), (plan.axis, above.bottom)])
    for start, end in _skips(plan.layer):
        x = end.x + end.width
        y = start.bottom + STEP / 2
        canvas.arrow([(plan.axis, y), (x + 20, y), (x + 20, end.middle), (x, end.middle)], "skip")
    for box in plan.boxes:
        _part(canvas, box)
    if not sends:
        canvas.arrow([(plan.axis, plan.top), (plan.axis, plan.top - STEP)])
    y = min(plan.top, upper) - 42
    total = f"{counted(plan.tower.parameters)} parameters"
    canvas.text(plan.x + LEFT, y, plan.tower.name.capitalize(), "tower", then=total)


def _skips(layer: tuple[Placed, ...]) -> Iterator[tuple[Placed, Placed]]:
    """From the first box of each sublayer to where it is added again."""
    first: Placed | None = None
    for box in layer:
        first = first or box
        if box.part.kind in (Kind.ADD, Kind.ADD_NORM):
            yield first, box
            first = None


def _part(canvas: Canvas, box: Placed) -> None:
    part, x, right = box.part, box.x + PADDING, box.x + box.width - PADDING
    style = part.kind.name.lower().replace("_", "-")
    canvas.box(box.x, box.y, box.width, box.height, style)
    if part.kind in ATTENTION:
        pattern(canvas, part.kind, x, box.middle - 21)
        x += ICON
    y = box.y + 22
    quiet = " ".join(part.says) if part.kind in FLAT else ""
    canvas.text(x, y, part.name, "name", then=quiet)
    lines = _lines(part, box.width)
    for i, line in enumerate(lines):
        canvas.text(x, y + 18 * (i + 1), line, "line")
    if part.parameters:
        under = 0 if _beside(part, box.width) else 18 * (len(lines) + 1)
        canvas.text(right, y + under, counted(part.parameters), "number")


def pattern(canvas: Canvas, kind: Kind, x: float, y: float) -> None:
    """Draw who looks at whom: a row a query, a column a key; what is hidden is hollow."""
    rows, columns = (4, 5) if kind is Kind.CROSS else (5, 5)
    y += (5 - rows) * 4.5
    for i in range(rows):
        for j in range(columns):
            hidden = kind is Kind.MASKED and j > i
            style = "hidden" if hidden else f"ink-{kind.name.lower()}"
            canvas.cell(x + 9 * j, y + 9 * i, 7, style)


def _bridge(canvas: Canvas, encoder: Plan, decoder: Plan) -> None:
    """From what the encoder gives to the cross-attention of the decoder."""
    cross = [box for box in decoder.layer if box.part.kind is Kind.CROSS]
    if not cross:
        return
    upper, _ = encoder.frame
    start = min(encoder.top, upper if encoder.boxes[-1] is encoder.layer[-1] else encoder.top)
    middle, over = encoder.x + encoder.width + BETWEEN / 2, start - 20
    end = cross[0]
    canvas.arrow(
        [(encoder.axis, encoder.top), (encoder.axis, over), (middle, over), (middle, end.middle),
         (end.x, end.middle)],
        "bridge",
    )  # fmt: skip
    canvas.text(middle + 28, end.middle - 9, "keys,", "small")
    canvas.text(middle + 28, end.middle + 19, "values", "small")


def _foot(canvas: Canvas, architecture: Architecture, y: float) -> float:
    """Draw the legend and what the cache takes; return where it ends."""
    canvas.box(MARGIN, y - 38, WIDTH - 2 * MARGIN, 1, "rule", radius=0)
    for kind in architecture.kinds:
        pattern(canvas, kind, MARGIN, y - 24)
        canvas.text(MARGIN + ICON, y - 4, kind.value, "name")
        canvas.text(MARGIN + ICON, y + 14, ATTENTION[kind], "line")
        y += 58
    cache = [] if architecture.cache is None else kept(architecture.cache)
    for line in [NOTE, *cache]:
        for piece in broken(line, WIDTH - 2 * MARGIN, LINE):
            canvas.text(MARGIN, y, piece, "line")
            y += 20
    return y

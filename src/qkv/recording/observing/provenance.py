"""Where each tensor came from: nodes keyed by storage, gone when their storage is gone.

A node says how a storage's content was made, with kinds and shapes and no tensors. Tensors are
held only by what starts at a product of two activations, and by the masks on its way.
"""

import weakref
from copy import copy
from typing import Any

from torch import Tensor, nn

from qkv.recording.calls.held import Held
from qkv.recording.observing.axes import Layout
from qkv.recording.observing.nodes import Cell, Key, Kind, Node, on_storage

ACTIVATIONS = 24
"""Operations followed from a product of two activations on."""

LEARNED = 14
"""Operations followed from a product with a parameter on: rotary positions, normalised heads."""


INHERITED = frozenset({
    "left", "strong", "learned", "source", "softmax", "found", "number", "storage", "reason",
    "of_product",
})  # fmt: skip
"""What a view has of its owner."""


class Provenance:
    """The nodes of all storages that live, and what is held of them."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._nodes: dict[int, Node] = {}
        self._held: dict[int, set[_Guard]] = {}
        nodes, guards = self._nodes, self._held

        def gone(key: Any) -> None:
            place: int = key.place
            node = nodes.get(place)
            if node is not None and node.storage is key:
                del nodes[place]

        def let_go(guard: Any) -> None:
            place: int = guard.place
            of_storage = guards.get(place, set())
            of_storage.discard(guard)
            if not of_storage:
                guards.pop(place, None)

        self._gone, self._let_go = gone, let_go

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, tensor: Tensor) -> Node | None:
        """Return how a tensor was made, or None where nothing is known of its storage."""
        node = self._nodes.get(id(tensor.untyped_storage()))
        if node is None or node.layout == (tensor.shape, tensor.stride(), tensor.storage_offset()):
            return node
        if not node.learned:
            return view_of(tensor, node)
        view = node.last_view  # a layer's matrix is read in the same way every time
        if view is None or view.layout != (tensor.shape, tensor.stride(), tensor.storage_offset()):
            view = node.last_view = view_of(tensor, node)
        return view

    def node(self, tensor: Tensor) -> Node:
        """Return how a tensor was made; an unknown one is the start of something."""
        node = self.find(tensor)
        if node is not None and node.learned:
            return node
        base = tensor._base
        owner = tensor if base is None else base
        learned = type(owner) is not Tensor and isinstance(owner, nn.Parameter)
        if node is not None and not learned:
            return node
        node = Node("leaf", owner)  # a parameter's, however it was filled when it was made
        node.learned = learned or _cast_of_parameter(owner)
        if covers(owner):
            self.put(owner, node)
        return node if base is None else view_of(tensor, node)

    def put(self, tensor: Tensor, node: Node) -> None:
        """Say how the content of a tensor's storage was made."""
        storage = tensor.untyped_storage()
        place = id(storage)
        before = self._nodes.get(place)
        if before is not None and before.layout.shape.numel() > node.layout.shape.numel():
            return  # a part was overwritten: `written` forgets the whole
        key = Key(storage, self._gone)
        key.place, node.storage = place, key
        self._nodes[place] = node

    def follow(self, kind: Kind, out: Tensor, parent: Node) -> Node:
        """Say that a tensor was made of another one."""
        node = Node(kind, out, (parent,))
        node.left = max(parent.left - 1, 0)
        node.strong, node.source = parent.strong, parent.source
        node.softmax, node.number = parent.softmax, parent.number
        self.put(out, node)
        return node

    def refill(self, tensor: Tensor, source: Node | None) -> None:
        """Rows were written into a tensor, as into a cache: it is now of their source."""
        self.node(tensor)
        owner = self.owner(tensor)
        if owner is None:
            whole = _whole(tensor)
            if whole is None:
                return
            owner = Node("leaf", whole)
        node = copy(owner)
        node.kind, node.parents, node.left, node.softmax = "leaf", (), 0, None
        node.source = None if source is None else source.source
        self.put(tensor, node)

    def take(self, out: Tensor, node: Node, operation: str) -> None:
        """Rows were taken of a tensor: a new one, of the same source."""
        made = Node("leaf", out)
        if node.strong or node.softmax is not None:
            made.kind, made.softmax = "unknown", node.softmax
            made.reason = (
                f"{operation} was applied to the similarities"
                if node.softmax is None
                else node.reason or f"it was changed by {operation} before the product"
            )
            made.of_product = node.root
        made._mark = node.mark
        made.source = node.source
        made.left = 0 if node.strong else max(node.left - 1, 0)
        self.put(out, made)

    def current(self, node: Node) -> Tensor | None:
        """Return the tensor that a node describes, while it lives with the same content."""
        storage = None if node.storage is None else node.storage()
        if storage is None:
            return None
        if self._nodes.get(id(storage)) is not node.owner:
            return None
        return on_storage(storage, node.layout, node.dtype)

    def origin(self, tensor: Tensor, node: Node) -> tuple[Tensor, Node, float]:
        """Return the furthest living ancestor with the same content up to a factor, and that.

        Copies and repeats then need not be held, nor queries that were scaled beforehand.
        """
        best, factor, copied, dtype = (tensor, node, 1.0), 1.0, False, node.dtype
        while node.kind in ("view", "same", "scale"):
            if node.kind == "view":
                if node.layout.places() < node.parents[0].layout.shape.numel():
                    break  # a part
            else:
                copied = True
                factor *= node.number if node.kind == "scale" else 1.0
            node = node.parents[0]
            if copied and node.dtype == dtype:
                living = self.current(node)
                if living is not None:
                    best, copied = (living, node, factor), False
        return best

    def written(self, tensor: Tensor, before: Node | None, operation: str) -> None:
        """Forget how a storage's content was made, where no one said what was written into it."""
        place = id(tensor.untyped_storage())
        if before is None or self._nodes.get(place) is not before:
            return
        if before.left or before.softmax is not None:
            node = Node("unknown", tensor)
            node.softmax = before.softmax
            node.reason = f"{operation} wrote into the {before.content}"
            self.put(tensor, node)
        else:
            del self._nodes[place]

    def owner(self, tensor: Tensor) -> Node | None:
        """Return the node of a tensor's whole storage."""
        return self._nodes.get(id(tensor.untyped_storage()))

    def remember(self, tensor: Tensor, strong: bool) -> Cell:
        """Keep a tensor, or only remember where it lies."""
        return self.hold(tensor) if strong else self.node(tensor).seen(tensor)

    def hold(self, tensor: Tensor) -> Held:
        """Keep a tensor."""
        held = Held(tensor)
        self.guard(held)
        return held

    def guard(self, held: Held) -> None:
        """Have a tensor copied before it is overwritten."""
        guard = _Guard(held, self._let_go)
        guard.place = id(held.tensor.untyped_storage())
        self._held.setdefault(guard.place, set()).add(guard)

    def before_write(self, tensor: Tensor) -> None:
        """Copy what is held of a storage that is about to be overwritten."""
        cells = self._held.pop(id(tensor.untyped_storage()), None)
        copies: dict[tuple[object, ...], Tensor] = {}
        for held in [cell for guard in cells or () if (cell := guard()) is not None]:
            layout = (*Layout.of(held.tensor), held.tensor.dtype)
            if layout not in copies:
                copies[layout] = held.tensor.clone()
            held.tensor = copies[layout]
            self.guard(held)
            reader = None if held.reader is None else held.reader()
            if reader is not None:
                reader()


class _Guard(weakref.ref[Held]):
    """A weak reference to what is kept that knows on which storage."""

    __slots__ = ("place",)
    place: int


def covers(tensor: Tensor) -> bool:
    """Say whether a tensor is all that its storage holds."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _whole(tensor: Tensor) -> Tensor | None:
    """Return the dense tensor whose rows these are, for a view that does not know its base."""
    length, shape = tensor.untyped_storage().nbytes() // tensor.element_size(), list[int]()
    for stride in tensor.stride():
        if not stride or length % stride:
            return None
        shape.append(length // stride)
        length = stride
    return tensor.as_strided(shape, tensor.stride(), 0) if length == 1 else None


def _cast_of_parameter(tensor: Tensor) -> bool:
    """Say whether a tensor is what autocast kept of a parameter, from before anybody looked."""
    cast = tensor.grad_fn if tensor.dim() == 2 else None
    if cast is None or cast.name() != "ToCopyBackward0":
        return False
    return isinstance(getattr(cast.next_functions[0][0], "variable", None), nn.Parameter)


def view_of(tensor: Tensor, owner: Node) -> Node:
    """Return how a view of a tensor was made."""
    node = Node("view", tensor, (owner,))
    mine, theirs = node.__dict__, owner.__dict__
    for name in INHERITED & theirs.keys():
        mine[name] = theirs[name]
    return node

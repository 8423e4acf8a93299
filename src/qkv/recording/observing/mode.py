"""`Observer`: sees every operation of a model and changes none.

Operations that are made of others are entered where PyTorch has not taken them apart itself: in
inference mode, and inside its own fast path for nn.MultiheadAttention and nn.TransformerEncoder.
They run exactly as they would have: the thread's dispatch state is restored around them.

What runs on symbols, while a model is exported, runs untouched.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from qkv.recording.calls.call import Call
from qkv.recording.observing import ends, flex, kernels  # noqa: F401  they register their operations
from qkv.recording.observing.matching import Matcher
from qkv.recording.observing.misses import COMPILED, THREADS, Misses, Threads
from qkv.recording.observing.operations import HANDLERS, Handler
from qkv.recording.observing.places import Places, modules
from qkv.recording.observing.provenance import Provenance

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

SYMBOLIC = tuple(
    getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")
)
"""Modes of PyTorch under which operations compute no numbers, or are written down."""

EXPORTED = "a model was exported: what runs on symbols instead of numbers is not recorded"

OVERLAPPED = (
    "watches of one thread overlapped: each recorded whatever ran in the thread while it was open"
)

_number_of_modes = torch._C._len_torch_dispatch_stack

NUMBER = "Expected a value of type 'Tensor"
"""What PyTorch says of a number that is a tensor without axes, as scripted code makes them."""


class _Plan:
    """What to do about one operation.

    Attributes:
        handler: told of it after it ran.
        written: the argument that it overwrites, by place or by keyword.
        composite: whether it is only made of others.
        entered: whether it is PyTorch's fast path, which is entered.
        opaque: whether nothing can be seen inside.
    """

    __slots__ = ("composite", "entered", "handler", "name", "opaque", "written")

    def __init__(self, func: Any) -> None:
        higher = not isinstance(func, torch._ops.OpOverload)
        self.handler: Handler | None = HANDLERS.get(func.name() if higher else func)
        self.written: int | str | None = None
        self.composite = self.entered = False
        self.opaque = higher and self.handler is None
        self.name = str(func)
        if higher:
            return
        name = func._schema.name
        self.entered = name in (
            "aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd",
        )  # fmt: skip
        self.composite = self.handler is None and _only_composite(func)
        if self.handler is None and not self.composite and not self.entered:
            self.opaque = any(part in name for part in ("attention", "attn"))
            self.opaque |= not name.startswith(("aten::", "prim::", "prims::"))
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.written = argument.name if argument.kwarg_only else place
                break

    @property
    def idle(self) -> bool:
        """Whether the operation is of no interest."""
        return not (
            self.handler or self.composite or self.entered or self.opaque
        ) and self.written is None  # fmt: skip


def _plan(func: Any) -> _Plan | None:
    """Return what to do about an operation; None: only run it."""
    try:
        plan = _Plan(func)
    except Exception:  # an operation that PyTorch itself cannot describe: prim.device
        return None
    return None if plan.idle else plan


def _symbolic() -> bool:
    """Say whether operations run on symbols instead of numbers, or are written down."""
    if _number_of_modes() == 0:
        return False
    return any(torch._C._get_dispatch_mode(key) is not None for key in SYMBOLIC)


def _as_tensors(func: Any, args: Sequence[Any]) -> list[Any]:
    """Make tensors again of the numbers that PyTorch made of them."""
    wanted = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
    return [
        torch.scalar_tensor(x, dtype=torch.int64 if isinstance(x, int) else torch.float64)
        if tensor and isinstance(x, int | float) and not isinstance(x, bool)
        else x
        for x, tensor in zip(args, wanted, strict=False)
    ]


def _only_composite(func: Any) -> bool:
    name = func.name()
    own = ("CPU", "CUDA", "CompositeExplicitAutograd", "ADInplaceOrView")  # the last: pure views
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not any(has(name, key) for key in own)


_PLANS: dict[Any, _Plan | None] = {}
"""One for each operation of PyTorch that was met; it depends on nothing else. None: run it."""


class Observer(TorchDispatchMode):
    """Tells of every attention that a model computes, as it ran.

    Args:
        model: whose names paths use; None: those of whatever module is outermost.
        on_call: told of each attention, in order.
        only: asked with the module's path (None outside of every module) before a call is kept.

    Attributes:
        misses: what came near, and what limits the recording.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        model: nn.Module | None,
        on_call: Callable[[Call], None],
        only: Callable[[str | None], bool] | None = None,
    ) -> None:
        """See nothing before it is entered."""
        super().__init__()
        self.misses = Misses()
        self._places = Places(model)
        self._provenance = Provenance()
        self._matcher = Matcher(self._provenance, self._places, self.misses, on_call, only)
        self._entered = 0  # how deep inside PyTorch's fast path
        if model is not None:
            self._note(model)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard around every operation costs more than the observer

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let FlexAttention compile its functions; it then arrives as one operation."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and see what it did."""
        try:
            plan = _PLANS[func]
        except KeyError:
            plan = _PLANS[func] = _plan(func)
        try:
            if plan is None:
                return func(*args, **kwargs) if kwargs else func(*args)
            return self._observed(plan, func, args, kwargs or {})
        except RuntimeError as error:
            if NUMBER not in str(error):
                raise
            return func(*_as_tensors(func, args), **(kwargs or {}))

    def __enter__(self) -> "Observer":
        """Begin to see."""
        self._threads = Threads()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Let go of what only recording needs."""
        self._leave(*raised)
        if self._threads.started():
            self.misses.note(THREADS)
        self.misses.threads |= self._threads.running()
        if self._places.compiled:
            self.misses.note(COMPILED)
        self._places.release()
        for model in self._places.models:
            self._note(model)

    def _leave(self, *raised: Any) -> None:
        """Take this mode off the thread's stack, wherever it stands.

        It is not the last where watches overlap: of generators, of tasks that wait for each other.
        """
        above = list[Any]()
        modes = [torch._C._get_dispatch_stack_at(place) for place in range(_number_of_modes())]
        if not any(mode is self for mode in modes):  # entered in another thread
            self.misses.note(OVERLAPPED)
            return
        while modes[-1] is not self:
            above.append(_pop_mode())
            modes.pop()
        super().__exit__(*raised)
        for mode in above[::-1]:
            _push_mode(mode)
            if isinstance(mode, Observer):
                mode.misses.note(OVERLAPPED)
        if above:
            self.misses.note(OVERLAPPED)

    def _note(self, model: nn.Module) -> None:
        """Say what of a model is not seen as it would run alone."""
        for name, module in modules(model):
            if isinstance(module, torch.jit.ScriptModule):
                self.misses.note(
                    f"{name or type(module).__name__} is scripted or traced: what is inside it is "
                    f"seen without the paths and lines of its modules"
                )
            elif hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
                self.misses.note(
                    f"{name or type(module).__name__} is compiled: only what its code calls one "
                    f"by one is seen; watch the module that was compiled instead"
                )

    def _observed(self, plan: _Plan, func: Any, args: Any, kwargs: Any) -> Any:
        if _symbolic():
            self.misses.note(EXPORTED)
            return func(*args, **kwargs)
        if plan.composite:
            return self._taken_apart(func, args, kwargs)
        if plan.entered:
            return self._inside(func, args, kwargs)
        if plan.opaque:
            self.misses.opaque[plan.name] += 1
        written: Any = None
        before = None
        if plan.written is not None:
            written = (
                kwargs.get(plan.written) if isinstance(plan.written, str) else args[plan.written]
            )
            if isinstance(written, Tensor):
                before = self._before_write(plan, written)
        out = func(*args, **kwargs)
        if plan.handler is not None and torch._C._current_graph_task_id() == -1:
            try:
                plan.handler(self._matcher, args, kwargs, out)
            except Exception as error:
                self._failed(plan, error)
        if before is not None:
            self._provenance.written(written, before, plan.name)
        return out

    def _before_write(self, plan: _Plan, tensor: Tensor) -> Any:
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        try:
            self._provenance.before_write(tensor)
            return self._provenance.owner(tensor)
        except Exception as error:
            self._failed(plan, error)
            return None

    def _failed(self, plan: _Plan, error: Exception) -> None:
        """Note that a handler failed; the model goes on."""
        place = self._places.here()
        self.misses.add(plan.name, place, (), f"{type(error).__name__}: {error}")

    def _taken_apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._entered:
            return self._again(func, COMPOSITE, args, kwargs)
        if not torch.is_inference_mode_enabled():
            return func(*args, **kwargs)
        with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
            return self._again(func, COMPOSITE, args, kwargs)

    def _inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        key = torch._C.DispatchKey
        self._entered += 1
        try:
            return self._again(
                func, key.NestedTensorCPU if args[0].is_nested else key.CPU, args, kwargs
            )
        finally:
            self._entered -= 1

    def _again(self, func: Any, key: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation's own kernel, with what it calls seen."""
        _push_mode(self)
        try:
            return func._op_dk(key, *args, **kwargs)
        finally:
            _pop_mode()

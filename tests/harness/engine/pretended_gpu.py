"""A GPU that is none: its tensors are on the CPU, but copies, launches and waits are those of a GPU, and are counted.

Code takes the ways that it takes on GPUs (`tensor.device.type == "cuda"`) and computes what it computes on the CPU.
What torch would refuse on a GPU, such as an operation on tensors of both devices, is refused here. Launches are
operations of torch that are neither views nor allocations: each is at least one kernel.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from draftwire_core.engine.model.cuda.graph_capture import HostReadError, NoHostReads

DEVICE = torch.device("cuda:0")
_BACK, _THERE, _WAITS, _LAUNCHES = "copies back", "copies to the device", "waits", "launches"
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "detach", "alias", "lift_fresh"}


class PretendedGpu:
    """What code has asked of the device."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By name: "copies to the device", "copies back", "waits", "launches"."""
        self._replaying = False
        self._pinned: dict[int, torch.UntypedStorage] = {}

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Counts anew within the context."""
        self.counts = Counter()
        yield self.counts

    def count(self, name: str) -> None:
        """Counts something, except launches within a graph."""
        if name != _LAUNCHES or not self._replaying:
            self.counts[name] += 1

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, whose memory is pinned from now on."""
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = storage  # kept, so that no other memory gets its address
        return tensor

    def copied(self, host: torch.Tensor, name: str, non_blocking: bool) -> None:
        """Counts a copy, which waits for the device unless memory and call allow it not to."""
        if any(type(mode) is NoHostReads for mode in _get_current_dispatch_mode_stack()):
            raise HostReadError(name)  # it sees the CPU's tensors only
        self.count(name)
        if not (non_blocking and host.untyped_storage().data_ptr() in self._pinned):
            self.count(_WAITS)

    def read(self) -> None:
        """Counts an operation whose result the host must know before it goes on."""
        self.count(_BACK)
        self.count(_WAITS)

    def graph(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures a call: a replay is one launch, whatever is in it."""

        def replay() -> Any:
            self.count(_LAUNCHES)
            self._replaying = True
            try:
                return run()
            finally:
                self._replaying = False

        return replay


_gpu = PretendedGpu()
_READS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__"}


class GpuTensor(torch.Tensor):
    """A tensor of the pretended GPU."""

    @classmethod
    def __torch_function__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if call == torch.Tensor.device.__get__:
            return DEVICE
        if call == torch.Tensor.is_cuda.__get__:
            return True
        name = getattr(call, "__name__", "")
        if name == "_has_compatible_shallow_copy_type":  # modules that are moved get new parameters
            return False
        assert name not in ("numpy", "__array__"), "an array of a tensor on a GPU"
        if name == "cpu" or (name == "to" and _device_of(args[1:], kwargs) not in (None, "cuda")):
            _gpu.copied(plain(args[0]), _BACK, False)
            return plain(args[0]).clone()
        if name == "to" and _device_of(args[1:], kwargs):
            kwargs = {each: value for each, value in kwargs.items() if each != "device"}
            args = (args[0], *(each for each in args[1:] if not isinstance(each, str | torch.device)))
            if not args[1:] and "dtype" not in kwargs:
                return args[0]
        if name == "copy_" and isinstance(args[0], GpuTensor) != isinstance(args[1], GpuTensor):
            there = isinstance(args[0], GpuTensor)
            _gpu.copied(args[int(there)], _THERE if there else _BACK, kwargs.get("non_blocking", False))
            plain(args[0]).copy_(plain(args[1]))
            return args[0]
        if name in _READS:
            _gpu.read()
            return call(*map(plain, args), **kwargs)
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, torch.Tensor) and not isinstance(each, GpuTensor) and each.dim():
                assert name in ("__getitem__", "__setitem__"), f"{name} of tensors of two devices"
                _gpu.copied(each, _THERE, False)
        if name in ("__getitem__", "__setitem__") and any(isinstance(each, list) for each in _parts(args[1])):
            _gpu.copied(torch.empty(1), _THERE, False)  # torch makes a tensor of the list
        with _Launches():
            return super().__torch_function__(call, types, args, kwargs)


class _Launches(NoHostReads):
    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            found = super().__torch_dispatch__(call, types, args, kwargs)
        except HostReadError:
            _gpu.read()
            return call(*args, **(kwargs or {}))
        name = call.overloadpacket.__name__
        # A conversion is a view, to torch, if there is nothing to convert.
        converts = name == "to" and found.data_ptr() != args[0].data_ptr()
        if converts or not (call.is_view or name in _ALLOCATIONS):
            _gpu.count(_LAUNCHES)
        return found


def _parts(index: Any) -> list[Any]:
    """The parts of an index."""
    return list(index) if isinstance(index, tuple) else [index]


def plain(value: Any) -> Any:
    """The CPU's tensor that one of the pretended GPU is; anything else as it is."""
    return value.as_subclass(torch.Tensor) if isinstance(value, GpuTensor) else value


def to_gpu(module: torch.nn.Module) -> None:
    """Moves a module's parameters and buffers."""
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                moved = parameter.data.as_subclass(GpuTensor)
                each._parameters[name] = torch.nn.Parameter(moved, requires_grad=False)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = buffer.as_subclass(GpuTensor)


class _Factories(TorchFunctionMode):
    """Makes tensors on the device, pins them and moves them to it, before torch asks for CUDA."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(call, "__name__", "")
        if name == "pin_memory":
            return _gpu.pin(args[0].clone())
        first = args[0] if args else None
        if name == "to" and not isinstance(first, GpuTensor) and _device_of(args[1:], kwargs) == "cuda":
            _gpu.copied(first, _THERE, kwargs.get("non_blocking", False))
            return first.clone().as_subclass(GpuTensor)
        if kwargs.pop("pin_memory", False):
            return _gpu.pin(call(*args, **kwargs))
        if name != "to" and _device_of((), kwargs) == "cuda":
            with _Launches():
                found = call(*map(plain, args), **{**kwargs, "device": "cpu"})
            if name == "tensor":
                _gpu.copied(found, _THERE, False)
            return found.as_subclass(GpuTensor)
        return call(*args, **kwargs)


def _device_of(args: Any, kwargs: dict[str, Any]) -> str | None:
    """The kind of the device that a call names; None if it names none."""
    for each in (*args, kwargs.get("device")):
        if isinstance(each, str | torch.device):
            return torch.device(each).type
    return None


def _all_gather(parts: torch.Tensor, part: torch.Tensor) -> None:
    """As NCCL's: one launch, among tensors of the device alone."""
    assert isinstance(parts, GpuTensor) and isinstance(part, GpuTensor) and part.is_contiguous()
    _gpu.count(_LAUNCHES)
    with torch._C.DisableTorchFunction():
        dist.all_gather(list(plain(parts).unbind()), plain(part))


class _Event:
    def __init__(self, enable_timing: bool = False):
        self._timed = enable_timing

    def elapsed_time(self, other: _Event) -> float:
        assert self._timed and other._timed
        return 1.0

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _gpu.count(_WAITS)


class _Capture:
    def __init__(self, device: torch.device):
        assert device.type == "cuda"

    def captured(self, run: Callable[[], Any]) -> Callable[[], Any]:
        return _gpu.graph(run)


class _Kernel:
    """A kernel of Triton's, in its interpreter, on tensors of the pretended GPU."""

    def __init__(self, kernel: Any):
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            _gpu.count(_LAUNCHES)
            with torch._C.DisableTorchFunction():
                self._kernel[grid](*map(plain, args), **options)

        return launch


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """Within the context, `DEVICE` is a GPU."""
    from draftwire_core.engine.model.cuda import captured_steps

    with pytest.MonkeyPatch.context() as patch, _Factories():
        patch.setattr(torch.cuda, "Event", _Event)
        for name in ("device", "device_of"):
            patch.setattr(torch.cuda, name, lambda *_: nullcontext())
        patch.setattr(torch.cuda, "current_stream", lambda *_: None)
        for name in ("set_stream", "synchronize", "reset_peak_memory_stats"):
            patch.setattr(torch.cuda, name, lambda *_: None)
        for name in ("memory_allocated", "max_memory_allocated"):
            patch.setattr(torch.cuda, name, lambda *_: 0)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        patch.setattr(captured_steps, "GraphCapture", _Capture)
        patch.setattr(dist, "all_gather_into_tensor", _all_gather)
        if importlib.util.find_spec("triton"):
            from tests.harness.kernels.prepared_interpreter import prepare_interpreter

            prepare_interpreter()
            from draftwire_core.engine.device.gpu import MOST_SHARED
            from draftwire_core.engine.model.cuda import placing
            from draftwire_core.engine.model.cuda.kernels import (
                attention,
                key_rows,
                norm,
                packed_product,
                product,
                rank_sum,
                table_copies,
            )
            from draftwire_core.engine.sampling.triton_kernels import draw, filters, rank

            for module in (attention, product):
                patch.setattr(module, "processors", lambda _: 1)
            patch.setattr(product, "shared_bytes", lambda _: MOST_SHARED)
            patch.setattr(packed_product, "native_floats", lambda _: False)
            # It draws with a generator of the device.
            patch.setattr(placing, "try_kernels", lambda *_: [])
            for module, name in (
                (attention, "attention_parts_kernel"),
                (attention, "attention_sum_kernel"),
                (table_copies, "take_tokens_kernel"),
                (key_rows, "rotate_kernel"),
                (key_rows, "write_kernel"),
                (norm, "norm_kernel"),
                (norm, "keep_kernel"),
                (norm, "added_norm_kernel"),
                (product, "product_kernel"),
                (packed_product, "packed_product_kernel"),
                (rank_sum, "rank_sum_kernel"),
                (table_copies, "move_slots_kernel"),
                (table_copies, "feed_rows_kernel"),
                (filters, "least_kept"),
                (draw, "best_of_slices"),
                (draw, "follow_best"),
                (rank, "rank_slices"),
                (rank, "rank_rows"),
            ):
                patch.setattr(module, name, _Kernel(getattr(module, name)))
        yield _gpu

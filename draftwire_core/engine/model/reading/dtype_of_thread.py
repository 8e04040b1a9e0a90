"""The default data type while transformers makes a model, for the thread that makes it alone.

transformers sets torch's default, which belongs to the whole process: a step of another thread would make its tensors
in the type of a draft model that is being attached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import modeling_utils

_FLOATS = {
    torch.empty, torch.empty_permuted, torch.empty_strided, torch.zeros, torch.ones, torch.eye, torch.linspace,
    torch.logspace, torch.rand, torch.randn, torch.fft.fftfreq, torch.fft.rfftfreq, torch.bartlett_window,
    torch.blackman_window, torch.hamming_window, torch.hann_window, torch.kaiser_window,
}  # fmt: skip
"""Functions that make tensors of the default type unless they are told another one."""
_BY_VALUES = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.full, torch.arange, torch.range}
"""Functions that do so for values of Python that are not whole."""


class _DefaultDtype(TorchFunctionMode):
    """A default type of the thread that enters it."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") is not None:
            return func(*args, **kwargs)
        if func in _FLOATS:
            return func(*args, **{**kwargs, "dtype": self._dtype})
        made = func(*args, **kwargs)
        if func in _BY_VALUES and made.dtype == torch.get_default_dtype():
            typed = any(isinstance(each, torch.Tensor | np.ndarray | np.generic) for each in (*args, *kwargs.values()))
            return made if typed else made.to(self._dtype)
        return made


@contextmanager
def dtype_of_thread(dtype: torch.dtype, model_class_name: str | None = None) -> Iterator[None]:
    """Makes a type the default of this thread. It has the signature of `local_torch_dtype`, which it replaces in
    transformers. Raises ValueError for one that is not of floating point; the name is of the class that asks."""
    if not dtype.is_floating_point:
        raise ValueError(f"{model_class_name or 'a model'} cannot be made in {dtype}, which is not of floating point")
    with _DefaultDtype(dtype):
        yield


def install() -> None:
    """Replaces transformers' own way for the whole process."""
    modeling_utils.local_torch_dtype = dtype_of_thread

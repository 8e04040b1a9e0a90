"""The fields of a quantisation's configuration, each of which must be understood or the checkpoint is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_MOST_SHOWN = 60
# Of AutoGPTQ, GPTQModel and transformers:
_OF_TOOLS = {"sym", "static_groups", "true_sequential", "damp_percent", "damp_auto_increment", "mse", "act_group_aware"}
_OF_TOOLS |= {"dataset", "tokenizer", "model_seqlen", "batch_size", "block_name_to_quantize", "pad_token_id", "meta"}
_OF_TOOLS |= {"module_name_preceding_first_block", "cache_block_outputs", "quantizer", "model_name_or_path", "backend"}
_OF_TOOLS |= {"model_file_base_name", "use_cuda_fp16", "use_exllama", "exllama_config", "disable_exllama"}
_OF_TOOLS |= {"max_input_length", "method", "pack_impl"}
# Of AutoRound, in whichever format it writes:
_OF_TOOLS |= {"amp", "autoround_version", "enable_alg_ext", "enable_minmax_tuning", "enable_norm_bias_tuning"}
_OF_TOOLS |= {"enable_quanted_input", "gradient_accumulate_steps", "iters", "low_gpu_mem_usage", "lr", "minmax_lr"}
_OF_TOOLS |= {"model_free", "nsamples", "provider", "quant_block_list", "scale_dtype", "seqlen"}
_OF_TOOLS |= {"static_attention_dtype", "super_bits", "super_group_size", "supported_types", "to_quant_block_names"}
# Which layers, which the tensors show:
_OF_TOOLS |= {"modules_in_block_to_quantize", "modules_to_not_convert"}
OF_TOOLS = frozenset(_OF_TOOLS)
"""Fields that say how tools quantised the weights, and how other engines are to run them: nothing of the tensors."""


class Fields:
    """The fields of a part of the configuration."""

    def __init__(self, values: object, files: TensorFiles, path: str = ""):
        """values: of the part, by name. path: of the part, with a dot at its end. Raises ModelLoadError."""
        if not isinstance(values, Mapping):
            raise files.field_refusal(path.rstrip("."), f"is {_shown(values)}, not an object")
        self._values: Mapping[str, Any] = values
        self._files = files
        self._path = path

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name)

    def refusal(self, name: str, why: str) -> Exception:
        """A ModelLoadError that names a field."""
        return self._files.field_refusal(f"{self._path}{name}", why)

    def part(self, name: str) -> Fields:
        """The fields within a field. Raises ModelLoadError if it has none."""
        return Fields(self._values.get(name), self._files, f"{self._path}{name}.")

    def like(self, values: Mapping[str, Any]) -> Fields:
        """Other fields at the same place."""
        return Fields(values, self._files, self._path)

    def names(self) -> Collection[str]:
        """The names of the fields."""
        return list(self._values)

    def one_of(self, name: str, allowed: Collection[object]) -> Any:
        """A field's value, None if it is missing. Raises ModelLoadError unless it is one of those allowed."""
        value = self._values.get(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            raise self.refusal(name, f"is {_shown(value)}, which is not supported")
        return value

    def nothing_but(self, known: Collection[str]) -> None:
        """Raises ModelLoadError if a field that is not known says anything."""
        for name, value in self._values.items():
            if name not in known and value not in (None, False, [], {}):
                raise self.refusal(name, f"is {_shown(value)}, which is not supported")

    def size(self, name: str) -> int:
        """A field's value, a positive whole number. Raises ModelLoadError."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, f"is {_shown(value)}; must be a positive whole number")
        return value

    def strings(self, name: str) -> list[str]:
        """A field's value, a list of strings; empty if it is missing. Raises ModelLoadError."""
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refusal(name, f"is {_shown(value)}; must be a list of names")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."

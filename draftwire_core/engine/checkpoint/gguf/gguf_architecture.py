"""The architectures of GGUF files: which parameters a model has, and how its file calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache

from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map

from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufMetadata

HEAD = "lm_head.weight"
"""The projection to the logits, in transformers; missing in files of models that use the embedding for it."""
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor, in files, of the factors that divide the frequencies of the rotary embedding, as since Llama 3.1."""
PERMUTED = ("self_attn.q_proj.", "self_attn.k_proj.")
"""Parts of the names, in transformers, of the parameters whose rows llama.cpp's converter may permute."""
_ARCHITECTURE = "general.architecture"
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """A family of models, as llama.cpp divides them."""

    name: str
    """The name in the file, which begins the keys of its metadata."""
    model_type: str
    """The name in transformers."""
    model_class: str
    """The class in transformers."""
    permuted: bool = False
    """Whether llama.cpp's converter permutes the rows of the projections to queries and keys."""
    always_biased: bool = False
    """Whether the projections to queries, keys and values have biases, and that of the attention's output has none."""
    head_norms: bool = False
    """Whether queries and keys are normalised by head."""
    norms_of_parts: bool = False
    """Whether the results of attention and MLP are normalised, too."""
    norms_plus_one: bool = False
    """Whether llama.cpp's converter adds 1 to the weights of norms."""
    sliding_pattern: int = 0
    """The last of each so many layers attends to all tokens, the others to a window; 0 if all attend to all."""


_ARCHITECTURES = {
    each.name: each
    for each in (
        GgufArchitecture("llama", "llama", "LlamaForCausalLM", permuted=True),  # also Mistral's models
        GgufArchitecture("qwen2", "qwen2", "Qwen2ForCausalLM", always_biased=True),
        GgufArchitecture("qwen3", "qwen3", "Qwen3ForCausalLM", head_norms=True),
        GgufArchitecture(
            "gemma3",
            "gemma3_text",
            "Gemma3ForCausalLM",
            head_norms=True,
            norms_of_parts=True,
            norms_plus_one=True,
            sliding_pattern=6,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class GgufDimensions:
    """The dimensions of a model, and so the names and shapes of its parameters."""

    architecture: GgufArchitecture
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int
    """Values of a head."""
    attention_bias: bool
    """Whether all four projections of the attention have biases, in architectures where only some models have them."""
    mlp_bias: bool
    """Whether the projections of the MLP have biases."""

    @classmethod
    def read(cls, metadata: GgufMetadata, tensors: Collection[str]) -> GgufDimensions:
        """Reads and checks the dimensions.

        tensors: the names of the tensors in the file. Raises ModelLoadError, which names the file and the key, for
        dimensions that are missing or contradict each other, and for an architecture that is not supported.
        """
        name = metadata.text(_ARCHITECTURE)
        architecture = _ARCHITECTURES.get(name)
        if architecture is None:
            why = f"{name[:_LONGEST_NAME]!r} is not supported; supported are {', '.join(_ARCHITECTURES)}"
            raise metadata.refusal(_ARCHITECTURE, why)
        if metadata.integer(f"{name}.expert_count", 0):
            raise metadata.refusal(f"{name}.expert_count", "mixtures of experts are not supported")
        hidden, heads = metadata.size(f"{name}.embedding_length"), metadata.size(f"{name}.attention.head_count")
        kv_heads = metadata.size(f"{name}.attention.head_count_kv", heads)
        if heads % kv_heads:
            raise metadata.refusal(f"{name}.attention.head_count_kv", f"is {kv_heads}, which does not divide {heads}")
        rotated, key_length = f"{name}.rope.dimension_count", f"{name}.attention.key_length"
        # Older converters write no length of a key, even where it is not hidden / heads.
        head = metadata.size(key_length, metadata.size(rotated, max(1, hidden // heads)))
        if head % 2:
            raise metadata.refusal(key_length if key_length in metadata else rotated, f"is {head}; must be even")
        for key in (rotated, f"{name}.attention.value_length"):
            if metadata.size(key, head) != head:
                raise metadata.refusal(key, f"is {metadata[key]}, not the length of a key, {head}: not supported")
        return cls(
            architecture,
            metadata.size(f"{name}.block_count"),
            hidden,
            metadata.size(f"{name}.feed_forward_length"),
            heads,
            kv_heads,
            head,
            attention_bias=not architecture.always_biased and "blk.0.attn_q.bias" in tensors,
            mlp_bias=architecture.name == "llama" and "blk.0.ffn_gate.bias" in tensors,
        )

    def parameters(self, vocabulary: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """The name in transformers, the name in the file, and the shape of each parameter, layer after layer.

        vocabulary: rows of the embedding. Names the projection to the logits, too, which may be missing.
        """
        for parameter, shape in self._outside(vocabulary):
            yield parameter, self._name_in_file(parameter), shape
        names = [(part, self._name_in_file(f"model.layers.0.{part}"), shape) for part, shape in self._layer()]
        for layer in range(self.layers):
            for part, name, shape in names:
                yield f"model.layers.{layer}.{part}", name.replace("blk.0.", f"blk.{layer}.", 1), shape

    def _outside(self, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "model.embed_tokens.weight", (vocabulary, self.hidden)
        yield "model.norm.weight", (self.hidden,)
        yield HEAD, (vocabulary, self.hidden)

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The parameters of a layer."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        biased = self.architecture.always_biased
        for name, outputs, inputs, bias in (
            ("self_attn.q_proj", queries, self.hidden, biased or self.attention_bias),
            ("self_attn.k_proj", keys, self.hidden, biased or self.attention_bias),
            ("self_attn.v_proj", keys, self.hidden, biased or self.attention_bias),
            ("self_attn.o_proj", self.hidden, queries, self.attention_bias),
            ("mlp.gate_proj", self.intermediate, self.hidden, self.mlp_bias),
            ("mlp.up_proj", self.intermediate, self.hidden, self.mlp_bias),
            ("mlp.down_proj", self.hidden, self.intermediate, self.mlp_bias),
        ):
            yield f"{name}.weight", (outputs, inputs)
            if bias:
                yield f"{name}.bias", (outputs,)
        yield "input_layernorm.weight", (self.hidden,)
        yield "post_attention_layernorm.weight", (self.hidden,)
        if self.architecture.norms_of_parts:
            yield "pre_feedforward_layernorm.weight", (self.hidden,)
            yield "post_feedforward_layernorm.weight", (self.hidden,)
        if self.architecture.head_norms:
            yield "self_attn.q_norm.weight", (self.head,)
            yield "self_attn.k_norm.weight", (self.head,)

    def _name_in_file(self, parameter: str) -> str:
        """The name in the file of a parameter outside the layers or in the first one."""
        module, _, kind = parameter.rpartition(".")
        return f"{_names(self.architecture.name)[module]}.{kind}"


@cache
def _names(architecture: str) -> dict[str, str]:
    """The names in files by those of modules in transformers.

    Of the first layer only: a false number of layers must not cost memory.
    """
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    found = get_tensor_name_map(MODEL_ARCH(number), 1).mapping
    return {module: name for module, (_, name) in found.items()}

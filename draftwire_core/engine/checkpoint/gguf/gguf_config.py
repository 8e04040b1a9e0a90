"""The configuration, as of transformers, of the model in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import GgufArchitecture, Values
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import FACTORS, GgufKeys
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufMetadata
from draftwire_core.engine.checkpoint.gguf.gguf_rotary import check_factors, rotary
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import TOKENS, GgufVocabulary

_TOKENIZER = "tokenizer.ggml"


def read_config(
    header: GgufHeader,
    architecture: GgufArchitecture,
    *,
    vocabulary: int,
    tied: bool,
    factors: Mapping[str, GgufTensor],
) -> PretrainedConfig:
    """The configuration.

    transformers reads GGUF files itself, but drops scaled rotary embeddings, lengths of heads, sliding windows, scales
    and ends of texts.

    vocabulary: rows of the embedding. tied: whether the embedding is also the projection to the logits. factors: the
    tensors of the rotary embedding that the file has. Raises ModelLoadError, which names the file and the key or
    tensor, for values that are missing, absurd or not supported.
    """
    metadata, keys = header.metadata, GgufKeys(header, architecture.name, factors)
    if not keys.flag("attention.causal", True):
        raise keys.refusal("attention.causal", "is false; models that see the tokens to come do not generate text")
    values = _dimensions(keys, architecture) | {
        "vocab_size": vocabulary,
        architecture.epsilon: keys.positive(architecture.epsilon_key),
        "tie_word_embeddings": tied,
        "bos_token_id": _token(metadata, "bos_token_id", vocabulary),
        "pad_token_id": _token(metadata, "padding_token_id", vocabulary),
        "eos_token_id": _ends(header, vocabulary),
    }
    values |= {name: keys.size(key) for name, key in architecture.sizes.items()}
    values |= {name: keys.number(*key) for name, key in architecture.numbers.items()}
    values |= {name: keys.has_part(part) for name, part in architecture.parts.items()}
    if not architecture.fixed_rotary:
        values["rope_parameters"] = rotary(keys, architecture, values["head_dim"])
    values |= architecture.constants
    values |= architecture.read(keys, values)
    kind = values.pop("model_type", architecture.model_type)
    try:
        config = AutoConfig.for_model(kind, architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]], **values)
    except Exception as error:  # the library checks values with errors of several kinds
        raise metadata.refusal(f"{architecture.name}.*", f"no configuration: {error}") from error
    if FACTORS in factors and not architecture.fixed_rotary:
        check_factors(config, keys)
    return config


def _dimensions(keys: GgufKeys, architecture: GgufArchitecture) -> Values:
    """Sizes that all architectures have."""
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    kv_heads, head = heads, keys.count("rope.dimension_count", 0)
    if not architecture.latent:
        kv_heads, head = _kv_heads(keys, architecture, heads), _head(keys, architecture, hidden, heads)
    values: Values = {
        "hidden_size": hidden,
        "num_hidden_layers": keys.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "max_position_embeddings": keys.length("context_length"),
    }
    if architecture.feed_forward:
        values["intermediate_size"] = keys.size("feed_forward_length")
    return values


def _kv_heads(keys: GgufKeys, architecture: GgufArchitecture, heads: int) -> int:
    """Heads of keys and values."""
    key = "attention.head_count_kv"
    if key not in keys:
        return heads
    found = max(keys.sizes(key)) if architecture.kv_heads_by_layer else keys.size(key)
    if found == 0 or heads % found:
        raise keys.refusal(key, f"is {found}, which does not divide {heads}")
    return found


def _head(keys: GgufKeys, architecture: GgufArchitecture, hidden: int, heads: int) -> int:
    """Values of a head."""
    # Older converters write no length of a key, even where it is not hidden / heads.
    rotated = 0 if architecture.partly_rotated else keys.count("rope.dimension_count", 0)
    key = "attention.key_length" if "attention.key_length" in keys or not rotated else "rope.dimension_count"
    head = keys.size("attention.key_length", rotated or max(1, hidden // heads))
    if head % 2:
        raise keys.refusal(key, f"is {head}; must be even")
    if keys.size("attention.value_length", head) != head:
        value = keys.size("attention.value_length")
        raise keys.refusal("attention.value_length", f"is {value}, not the length of a key, {head}: not supported")
    return head


def _token(metadata: GgufMetadata, key: str, vocabulary: int) -> int | None:
    """The id of a special token; None if the file has none, or as in llama.cpp, one beyond the vocabulary."""
    key = f"{_TOKENIZER}.{key}"
    token = metadata.integer(key, vocabulary)
    return token if token < vocabulary else None


def _ends(header: GgufHeader, vocabulary: int) -> int | list[int] | None:
    """The ids of the tokens that end a text: one, several, or None."""
    if TOKENS in header.metadata:
        ends = [token for token in GgufVocabulary.read(header).ends if token < vocabulary]
    else:
        named = (_token(header.metadata, f"{role}_token_id", vocabulary) for role in ("eos", "eot", "eom"))
        ends = list(dict.fromkeys(token for token in named if token is not None))
    return ends if len(ends) > 1 else next(iter(ends), None)

"""The packages that a service needs in addition to those of the SDK."""

NEEDED = (
    "gguf",
    "grpc_health",
    "grpc_reflection",
    "h11",
    "huggingface_hub",
    "llguidance",
    "numpy",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "safetensors",
    "structlog",
    "tokenizers",
    "torch",
    "transformers",
    "uvloop",
)
"""Top-level packages of the extra `serve`. This module imports none of them."""

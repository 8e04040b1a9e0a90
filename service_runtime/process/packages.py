"""The packages that a service needs beside those of the SDK."""

NEEDED = (
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
"""Top-level packages of the extra `serve`. Nothing here imports one of them."""

"""Draft models: loading, serving and replacing them."""

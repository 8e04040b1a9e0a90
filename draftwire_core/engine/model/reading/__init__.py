"""Models of transformers, made from checkpoints of any kind, with weights as they lie in them."""

from draftwire_core.engine.model.reading.dtype_of_thread import install

install()

"""The distributions that a checkout is released as: `draftwire`, the SDK, and `draftwire-services`.

A checkout's packages are top-level folders with names such as `gateway`, which an installation must not put beside
other people's. So each distribution is built from a tree of its own, which is made from the checkout: in it the
services' packages are inside one package, `draftwire_services`, and all references to them are rewritten.

    python -m scripts.distributions OUT [--version 0.1.0]

writes both trees; each is an ordinary project, which pip and build take.
"""

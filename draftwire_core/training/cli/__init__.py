"""Commands of ``draftwire`` that run a model in this process, found by their entry points."""

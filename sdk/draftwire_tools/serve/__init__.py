"""``draftwire serve``: everything that serves a model, in one command."""

"""The files of a model: a directory, or a repository of the hub."""

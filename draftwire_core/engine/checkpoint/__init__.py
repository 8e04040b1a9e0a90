"""The files of a model, in a directory or a repository of the Hugging Face hub."""

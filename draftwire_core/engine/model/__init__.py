"""Forward passes of a Hugging Face decoder over the rows of many sequences, packed into one batch."""

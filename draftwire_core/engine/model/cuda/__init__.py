"""Forward passes on GPUs: steps of fixed sizes, captured as CUDA graphs."""

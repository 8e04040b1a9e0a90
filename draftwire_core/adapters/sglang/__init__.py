"""Remote, swappable drafters for an unmodified SGLang server, as its speculative algorithm DRAFTWIRE.

    python -m sglang.launch_server --model-path MODEL \
        --speculative-algorithm DRAFTWIRE --speculative-num-draft-tokens 6

SGLang finds the algorithm by the entry point `sglang.srt.plugins`, which calls `draftwire_sglang.plugin.register`.
"""

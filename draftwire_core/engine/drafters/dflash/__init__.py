"""DFlash: a small decoder that guesses a block of tokens in one pass, from the target's inner hidden states."""

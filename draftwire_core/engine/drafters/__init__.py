"""Speculation methods: each is a Drafter that opens sequences, applies verdicts and grows token trees."""

"""Speculation methods: each is a Drafter that opens sequences, follows verdicts and grows token trees."""

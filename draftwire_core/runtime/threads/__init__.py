"""Threads that run models, apart from event loops."""

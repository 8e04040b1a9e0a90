"""Distillation: a draft model learns from a target's answers to prompts."""

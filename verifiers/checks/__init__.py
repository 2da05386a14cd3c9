"""Verifiers that check a thought by a rule or a program, without a model."""

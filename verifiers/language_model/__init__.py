"""Verifiers that ask a language model."""

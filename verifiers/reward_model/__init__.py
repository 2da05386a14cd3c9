"""Verifiers that are reward models."""

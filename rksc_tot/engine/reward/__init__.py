"""Engines of reward models: a backbone with a head that reads steps."""

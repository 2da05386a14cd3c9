"""Training and evaluation of the embedded model."""

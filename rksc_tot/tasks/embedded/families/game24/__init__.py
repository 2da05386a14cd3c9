"""The family ``game24``: training documents and evaluation of the embedded model."""

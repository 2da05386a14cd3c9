"""Fits a linear head on hidden states that says whether a thought leads to a right answer (the verifier ``probe``)."""

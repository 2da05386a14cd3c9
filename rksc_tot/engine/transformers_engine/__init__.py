"""The engine over a transformers causal LM."""

"""The engine on a transformers causal LM."""

"""The decisions that save work: one paper, one file, no model and no tree in it."""

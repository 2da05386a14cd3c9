"""Pure decisions, one paper a file. They use no model, no tree and no cache."""

"""Pure decisions, one paper a file: no model, no tree, no tensor of a cache."""

"""From the text of the model to nodes: generation of thoughts, calls of the task, and the building of the tree."""

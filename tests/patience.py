"""How long a test waits for what must come: longer than a busy machine takes, shorter than pytest's limit for one test."""

PATIENCE = 240  # seconds

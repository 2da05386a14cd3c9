"""The same search on other engines."""

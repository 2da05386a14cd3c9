"""Views of searches."""

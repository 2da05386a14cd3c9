"""What a person sees of a search."""

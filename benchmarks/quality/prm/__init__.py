"""Process reward models: exactness, cost, and early exit."""

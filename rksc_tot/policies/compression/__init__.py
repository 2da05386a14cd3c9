"""Which tokens' KV stays when a path may not keep all of it."""

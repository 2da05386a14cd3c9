"""KV compression: policies that choose which tokens of a path or a thought keep their KV."""

"""When a verifier's question may end before the last layer."""

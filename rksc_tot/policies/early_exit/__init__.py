"""Early decisions: layer exit, verify skip, rival stop, and the test that calibrates them."""

"""How the embedded model is trained and evaluated."""

"""Tasks made of rows and a reward: reading rows, prompts from rows, answers in texts, and rewards."""

"""Built-in puzzles: countdown, chains of arithmetic, 4×4 sudoku, mini crosswords."""

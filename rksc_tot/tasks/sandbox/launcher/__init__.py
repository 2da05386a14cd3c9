"""The program that confines itself and then starts the code. It runs on its own, with the standard library only."""

"""The results page: run the benchmarks, keep their figures in docs/figures, write docs/results.md."""

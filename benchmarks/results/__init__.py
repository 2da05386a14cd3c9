"""The results page: runs the benchmarks, keeps their figures in docs/figures, writes docs/results.md."""

"""Figures of benchmarks as HTML and as pictures."""

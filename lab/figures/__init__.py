"""Figures of single experiments: classes, groups, and comparisons of runs."""

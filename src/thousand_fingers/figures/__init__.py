"""Drawings of the chapters: they take axes and data, and compute nothing."""

"""Experiments that are too long for a page: one function for each artefact in ``data/artefacts``.

Each computes one part of its artefact, so that a check can compute any part again.
"""

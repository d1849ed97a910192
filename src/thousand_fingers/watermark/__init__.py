"""Marks that a machine leaves in what it makes, and labels that say where something comes from.

``text`` holds the green lists, ``text_attacks`` what is done to them, ``unbiased`` two schemes that leave the
distribution of a token as it is, ``image`` the mark in a picture and ``provenance`` the signed label. Nothing
is imported here.
"""

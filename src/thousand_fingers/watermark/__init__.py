"""Marks for synthetic content: texts, images, signed manifests."""

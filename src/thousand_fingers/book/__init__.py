"""The machinery that executes, checks and renders the book."""

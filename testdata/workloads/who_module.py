"""A module of the user's own that keeps something."""

CACHE = {}

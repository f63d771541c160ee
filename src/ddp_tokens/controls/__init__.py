"""Deliberately wrong variants, each of which a check must refuse and name."""

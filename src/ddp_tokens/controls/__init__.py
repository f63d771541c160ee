"""Deliberately wrong variants: a check must refuse each, and name the mistake that was made."""

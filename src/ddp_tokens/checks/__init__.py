"""Checks compare files and write verdicts. They never train, and import neither the trainer nor a process group."""

"""Proof that a distributed gradient is the gradient of the chosen objective, and that a resume is exact."""

"""`audit`: listen to a training loop for some windows, and judge each."""

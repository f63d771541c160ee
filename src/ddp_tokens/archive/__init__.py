"""One file beside a paper: made, verified, rebuilt and compared. No torch."""

"""What is said about speed and size, measured: one file a claim, its peers in the same run."""

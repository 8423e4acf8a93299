"""Text to tokens and back, by whatever tables a model brings along."""

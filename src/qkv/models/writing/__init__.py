"""Writing token by token: sampling, beams, stop texts, streams."""

"""Model files as they lie on disk: each reader gives names, shapes, and tensors not yet read."""

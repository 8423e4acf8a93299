"""Any PyTorch model's attention as it ran: `watch`, Recording and Call.

Here belong what sees the operations of a model, finds attention among them, and keeps it. It
imports `weights` and `core`, and knows nothing of our own modules: it works on anybody's.
"""

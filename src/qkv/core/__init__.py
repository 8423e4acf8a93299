"""Tensors in, tensors out: attention and the record of its calculation.

This room knows no module, no file and no screen. The axes that its signatures name:

    batch       examples; any number of leading axes, written `*batch`
    heads       heads of the queries
    kv_heads    heads of the keys and values; divides `heads`, and each serves a run of them
    queries     positions that look
    keys        positions that are looked at
    d_k         values of one query and of one key, in one head
    d_v         values of one value, in one head
    n_embed     values of one token between the layers

What holds for softmax(Q Kᵀ / √d_k + M) V everywhere here: a query that may look at nothing has
the weights 0, the output 0 and finite gradients.
"""

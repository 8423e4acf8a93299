"""What sees every operation of a model and finds attention among them.

`mode` is handed the operations, `provenance` knows how each tensor was made, `matching` follows a
softmax back to one product and on to another, `layout` gives axes their names. Nothing here is
asked by a user; what is found becomes a `Call`.
"""

"""Modules: attention in its three kinds, and the layers of an encoder made of it.

Every module is a thin face over a function of `core`, and `explain(...)` writes what its forward
pass computes down as a `Calculation`. Python counts heads from 0; people's labels count from 1.
"""

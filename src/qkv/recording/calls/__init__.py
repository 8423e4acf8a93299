"""One attention as it ran: what it was computed from, and what follows from that.

`operands` is the seam between what was seen and what is asked; `form` reads a program of scores as
softmax(cap(Q Kᵀ · scale) + M), `weighing` makes `Weights` and the error of it.
"""

"""The attention matrix, never formed: softmax(Q Kᵀ / √d_k + M) and what can be asked of it.

Here belong the questions, their two engines (the fused kernel, exact blocks of rows) and the
records that sum a head up. It imports `core` alone and knows no module, model or screen.
"""

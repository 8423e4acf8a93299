"""Translating: the pairs, the systems that learn them, and the history that compares them.

The task itself stands in `tasks/translate.py`, as every other.
"""

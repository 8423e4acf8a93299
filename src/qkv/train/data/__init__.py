"""What models are trained on: examples made by rule or read from files, and what is held out.

A reader names every bad line by file and line. Nothing here needs PyTorch.
"""

"""Training: data, a loop, and the tasks that the loop serves.

Here belongs what turns data into a trained model: `data` makes and reads examples, a task is data,
a model and a measure in one short file, and one loop serves every task. It stands above `models`
and beside `explaining`, and imports neither the latter nor the command line.
"""

"""Tasks: what there is to learn, each in one short file of data, a model and a measure.

`catalogue` names them; none is imported before it is asked for.
"""

"""Drawing of `core`'s records: terminal, workbook, notebook, plot.

This room knows operations and matrices; it knows nothing of attention, modules or models.
"""

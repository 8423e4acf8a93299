"""What is kept of the calls as they come: all inputs, new rows of a generation, or a summary."""

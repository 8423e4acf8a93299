"""Sound to text: recordings, spectrograms, and which word was heard when."""

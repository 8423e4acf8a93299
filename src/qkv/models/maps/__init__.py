"""What a model is made of, without its weights: the record that `show` draws as a map."""

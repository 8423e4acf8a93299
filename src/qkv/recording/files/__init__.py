"""A recording on disk: tensors as safetensors, the rest as JSON, checked before it is believed."""

"""Tables as rows, examples and batches, as `datasets` formats them."""

"""The dataset that `load_dataset` returns, and passes over it."""

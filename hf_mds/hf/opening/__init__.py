"""From what a user gives to `load_dataset` to a dataset."""

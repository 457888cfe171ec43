"""The builder behind `load_dataset("mds", ...)`."""

"""Datasets in MDS as repositories of the Hub: `push_to_hub`."""

"""Features of `datasets` <-> encodings of MDS <-> columns of Arrow."""

"""Builders of `datasets`, installed as hf_mds.builders."""

"""`python -m hf_mds.cli`, as torchrun wants it."""

from hf_mds.cli import main

if __name__ == "__main__":
    main()

"""One module for each system: how its users write samples with it, and how they read them.

To add a system, write a module like the others, name it in SYSTEMS, and pin its package in `peers.txt`. A module has

    PACKAGE     the package whose version is reported
    OUTPUTS     for each workload that it takes part in, the kinds of batches that it can give
    CANNOT      for each measurement that it cannot take part in ("random", "resume", "start"), why
    SETTINGS    how it is used, in a line for the README

    write(source, folder, num_proc)     write the samples of a workloads.Source there, with so many processes
    read(folder, options)               return an iterable of batches: one epoch, as measure.Options says
    columns(options, batch)             return a batch as columns, named as in the source (optional)
    samples(folder, options)            return what `[number]` gives a sample of
    state(loader, num_batches)          return the state behind so many batches of what `read` returned
    resumed(folder, options, state)     return an iterable of the batches after it

Batches: "dicts" are lists of the samples, as the system gives them; "torch" are tensors where the values are numbers or
images, of dtype uint8 (channels first or last); "arrow" are tables or record batches of `options.batch_size` rows.
"""

from __future__ import annotations

OURS, PEERS = "ours", "peers"

SYSTEMS = {
    "hf_mds": OURS,
    "mosaicml": PEERS,
    "litdata": PEERS,
    "webdataset": PEERS,
    # We need `datasets` ourselves, so these read with the same release of it, and of torch, as we do.
    "datasets_parquet": OURS,
    "datasets_arrow": OURS,
    "imagefolder": PEERS,
}
"""Their names, and in which environment they run."""

TITLES = {
    "hf_mds": "hf_mds",
    "mosaicml": "mosaicml-streaming",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "datasets_parquet": "datasets, parquet",
    "datasets_arrow": "datasets, Arrow",
    "imagefolder": "ImageFolder",
}

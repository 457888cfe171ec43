"""`hf-mds convert`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_mds.cli.options import (
    AsJson,
    Columns,
    Compression,
    ExistOk,
    Hashes,
    NumProc,
    Out,
    Progress,
    Resume,
    SizeLimit,
    names_of,
    settings_of,
    shows_progress,
)
from hf_mds.cli.show import tell_written

if TYPE_CHECKING:
    from hf_mds.plan.packing import PackingSpec

__all__ = ["Config", "convert"]

Config = Annotated[str | None, typer.Option(help="Name of the config of a Hub dataset.")]


def convert(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="A Hub id, a saved dataset, or files, globs and URLs of one format."),
    ],
    out: Out,
    split: Annotated[
        str | None,
        typer.Option(help="Of several splits, the one to convert. By default all, each into a folder of its name."),
    ] = None,
    config: Config = None,
    columns: Columns = None,
    size_limit: SizeLimit = None,
    compression: Compression = None,
    hashes: Hashes = None,
    num_proc: NumProc = 1,
    resume: Resume = False,
    exist_ok: ExistOk = False,
    progress: Progress = None,
    as_json: AsJson = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Write tokens instead of text: a tokenizer of transformers, on the Hub or in a folder."),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="With --tokenizer, the column of text.", show_default="text")
    ] = None,
    eos: Annotated[
        bool | None,
        typer.Option(
            "--eos/--no-eos",
            help="With --tokenizer, end each text with the tokenizer's token for that.",
            show_default="eos",
        ),
    ] = None,
    pack: Annotated[
        str | None, typer.Option(help='With --tokenizer, write packs: "bfd" (whole documents) or "wrapped" (cut).')
    ] = None,
    sequence_len: Annotated[int | None, typer.Option(help="With --pack, tokens of a pack.")] = None,
    long_documents: Annotated[
        str | None, typer.Option(help='With "bfd", of documents longer than a pack: truncate, split or drop.')
    ] = None,
) -> None:
    """Write a dataset as MDS shards, with its features.

    Sources are Hub ids, parquet, JSON, CSV, TSV, Arrow and text files (also .gz, .zst, ...), and what save_to_disk
    wrote. Hub datasets and files are streamed: they are read once, and the disk holds no Arrow copy of them. What is
    written does not depend on --num-proc.

    \b
    Examples:
      hf-mds convert me/raw --out ./corpus --compression zstd --hashes xxh64
      hf-mds convert hf://datasets/allenai/c4 --config en --split train --out s3://bucket/c4
      hf-mds convert 'data/*.parquet' --out ./corpus/train --columns text,label --num-proc 8 --resume
      hf-mds convert 'data/*.jsonl' --out ./tokens/train --tokenizer gpt2 --pack bfd --sequence-len 2048
    """
    from hf_mds.hf.conversion.convert import to_mds
    from hf_mds.hf.opening.named import naming, open_named

    settings: dict[str, Any] = settings_of(size_limit=size_limit, compression=compression, hashes=hashes)
    _check_tokenizing(tokenizer, {"--text-column": text_column, "--eos/--no-eos": eos, "--pack": pack}, columns)
    packing = _packing_of(pack, sequence_len, long_documents)
    source = open_named(sources, config=config, split=split)
    if tokenizer is not None:
        from hf_mds.hf.conversion.tokenizing import load_tokenizer, packed, tokenized

        if num_proc > 1:  # processes are forked, and threads of the tokenizers' do not survive that
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        source = tokenized(source, load_tokenizer(tokenizer), column=text_column or "text", add_eos=eos is not False)
        source = source if packing is None else packed(source, packing)
    with naming(sources):
        written = to_mds(
            source,
            out,
            columns=names_of(columns),
            num_proc=num_proc,
            progress_bar=shows_progress(progress),
            resume=resume,
            exist_ok=exist_ok,
            **settings,
        )
    tell_written(out, written, as_json=as_json)


def _check_tokenizing(tokenizer: str | None, options: Mapping[str, object], columns: str | None) -> None:
    """Check what is given besides a tokenizer, or without one.

    Raises:
        BadParameter: If options do not fit each other.
    """
    for hint, value in options.items():
        if tokenizer is None and value is not None:
            raise typer.BadParameter("must come with --tokenizer, got it without", param_hint=hint)
    if tokenizer is not None and columns is not None:
        raise typer.BadParameter("must be left out with --tokenizer, which writes input_ids", param_hint="--columns")


def _packing_of(pack: str | None, sequence_len: int | None, long_documents: str | None) -> PackingSpec | None:
    """Return how to pack.

    Raises:
        BadParameter: If options do not fit each other.
    """
    if pack is None:
        for hint, value in (("--sequence-len", sequence_len), ("--long-documents", long_documents)):
            if value is not None:
                raise typer.BadParameter("must come with --pack, got it without", param_hint=hint)
        return None
    if sequence_len is None:
        raise typer.BadParameter("must be given with --pack, the tokens of a pack", param_hint="--sequence-len")
    from hf_mds.plan.packing import PackingSpec

    return PackingSpec(method=pack, sequence_len=sequence_len, long_documents=long_documents)

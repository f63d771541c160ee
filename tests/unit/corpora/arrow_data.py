"""Rows as Parquet files and as folders that `save_to_disk` of datasets 5.2.0 writes, made with pyarrow alone."""

import json

import pyarrow
from pyarrow import ipc, parquet

from tests.helpers import record

INTEGERS, FRACTIONS, TEXT = pyarrow.list_(pyarrow.int64()), pyarrow.list_(pyarrow.float64()), pyarrow.string()
TYPES = {
    "id": TEXT,
    "split": TEXT,
    "tokens": INTEGERS,
    "labels": INTEGERS,
    "weights": FRACTIONS,
    "document": TEXT,
    "starts": INTEGERS,
}
FULL = [
    record("a", "train", (3, 1, 2), (0, 2, -100)) | {"weights": [1.0, 0.5, 0.1], "document": "d"},
    record("b", "train", (0,), (1,)),
    record("ä", "train", (5, 5, 4, 0), (2, 1, 1, 0)) | {"starts": [0, 3], "document": "e"},
    record("c", "test", (1, 0), (1, 0)),
]
PLAIN = [record("a", tokens=(3, 1, 2), labels=(0, 2, 1)), record("b", "test")]


def table_of(records, **types):
    """Every row has every column of any row; what a row does not have is null."""
    names = [name for name in {**TYPES, **types} if any(name in row for row in records)]
    kinds = TYPES | types
    return pyarrow.table({name: pyarrow.array([row.get(name) for row in records], kinds[name]) for name in names})


def write_parquet(path, records, **types):
    parquet.write_table(table_of(records, **types), path)
    return path


def write_stream(path, table, rows_per_batch=1000):
    """As datasets does: a stream, not the file format, of batches of 1,000 rows."""
    with pyarrow.OSFile(str(path), "wb") as stream, ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)


def save_to_disk(folder, records, shards=1, **types):
    folder.mkdir(parents=True)
    table, names = table_of(records, **types), []
    for shard in range(shards):
        first, after = (len(records) * edge // shards for edge in (shard, shard + 1))
        names.append(f"data-{shard:05d}-of-{shards:05d}.arrow")
        write_stream(folder / names[-1], table.slice(first, after - first))
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "832e58a86ca45389",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    features = {name: {"dtype": "string", "_type": "Value"} for name in table.column_names}  # nobody reads them
    information = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    (folder / "dataset_info.json").write_text(json.dumps(information, indent=2, sort_keys=True))
    return folder


def save_splits_to_disk(folder, records):
    """A dataset_dict, whose folders say the split."""
    splits = list(dict.fromkeys(row["split"] for row in records))
    for split in splits:
        of_split = [{name: row[name] for name in row if name != "split"} for row in records if row["split"] == split]
        save_to_disk(folder / split, of_split)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    return folder

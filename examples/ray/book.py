#!/usr/bin/env python3
"""Speaks a book with Ray Data into Parquet files. After a stop, or a kill, the same command goes on.

    pip install "ray[data]"                 and Orate, as docs/python.md says
    python book.py book.txt spoken/        book.txt has a sentence in each line

A file has the sentences of a batch: `sentence` (its line, from 0), `text`, `seconds`, `audio` (a complete Opus file)
and `error` (why a sentence cannot be spoken). Batches and names of files follow from the book and the options alone.
Nothing is spoken twice: an actor writes the samples of each sentence to a journal as soon as it has them, and a kill
costs only the sentences that are being spoken (`--at-once` of each actor). When all sentences of a batch are spoken,
they are encoded into its file, which is complete or missing at any time.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import threading

import numpy as np
import orate
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy

SCHEMA = pa.schema(
    {
        "sentence": pa.int64(),
        "text": pa.string(),
        "seconds": pa.float64(),
        "audio": pa.binary(),
        "error": pa.string(),
    }
)
# Rows of journals. Audio is encoded later: what is spoken should be on the disk at once.
SPOKEN = pa.schema(
    {"sentence": pa.int64(), "text": pa.string(), "samples": pa.binary(), "error": pa.string()}
)


def batches_of(sentences, size, model, options):
    """Rows of Ray's dataset, a batch each. The name of its file has a hash of all that its sound depends on."""
    for first in range(0, len(sentences), size):
        texts = sentences[first : first + size]
        asked = json.dumps([texts, model, options], sort_keys=True).encode()
        file = f"{first:07}-{hashlib.sha256(asked).hexdigest()[:16]}.parquet"
        yield {"file": file, "first": first, "texts": texts}


class Speaker:
    """An actor. It opens an engine of its own, since engines cannot be sent to another process."""

    def __init__(self, folder, model, options, threads, device, at_once):
        self.folder, self.options, self.at_once = pathlib.Path(folder), options, at_once
        self.engine = orate.Engine(model, threads=threads, device=device)
        # An unknown voice or option fails here, not as the error of each sentence.
        self.engine.say("Ready.", **options)

    def speak(self, text):
        """Samples of a text, or why it cannot be spoken."""
        try:
            return {"samples": self.engine.say(text, **self.options).samples.tobytes()}
        except orate.InputError as e:
            return {"error": str(e)}

    def encode(self, row):
        """Row of a file from one of a journal."""
        if row.get("samples") is None:
            return row
        audio = orate.Audio(np.frombuffer(row["samples"], np.float32), self.engine.sample_rate)
        return row | {"seconds": audio.duration, "audio": audio.encode("opus")}

    def __call__(self, batch):
        for name, first, texts in zip(batch["file"], batch["first"], batch["texts"]):
            file = self.folder / str(name)
            # Ray repeats a batch whose actor died, which may have been after it was written.
            if not file.exists():
                self.write(file, int(first), [str(text) for text in texts])
        return {"file": batch["file"]}

    def write(self, file, first, texts):
        """Speaks what the journal of a batch lacks, and makes a file of it."""
        journal = file.with_name(f".{file.name}.journal")
        kept = read(journal)
        left = dict(enumerate(texts, first))
        for row in kept:
            del left[row["sentence"]]

        def speak(sentence):
            row = {"sentence": sentence, "text": left[sentence]} | self.speak(left[sentence])
            keep(row)
            return row

        with Journal(journal, kept) as keep, concurrent.futures.ThreadPoolExecutor(self.at_once) as threads:
            kept = sorted([*kept, *threads.map(speak, left)], key=lambda row: row["sentence"])
            table = pa.Table.from_pylist(list(threads.map(self.encode, kept)), schema=SCHEMA)
        part = file.with_name(f".{file.name}.part")
        with open(part, "wb") as out:
            pq.write_table(table, out)
            out.flush()
            os.fsync(out.fileno())
        rename(part, file)
        journal.unlink()


def rename(old, new):
    """Renames a file; on return the new name is on the disk, too, where folders can be synced."""
    old.rename(new)
    if os.name == "posix":
        folder = os.open(new.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


class Journal:
    """A stream of Arrow with a batch for each row. A call, of any thread, returns when its row is on the disk."""

    def __init__(self, path, rows):
        # Nothing can follow a row that a kill has cut off, so this is a new stream, which begins with `rows`.
        new = path.with_suffix(".new")
        self.lock = threading.Lock()
        self.file = open(new, "wb")
        self.stream = pa.ipc.new_stream(self.file, SPOKEN)
        for row in rows:
            self(row)
        rename(new, path)

    def __call__(self, row):
        with self.lock:
            self.stream.write_batch(pa.RecordBatch.from_pylist([row], schema=SPOKEN))
            self.file.flush()
            os.fsync(self.file.fileno())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.file.close()


def read(journal):
    """Rows of a journal, up to where a kill has cut it off."""
    rows = []
    try:
        with open(journal, "rb") as file:
            for batch in pa.ipc.open_stream(file):
                rows += batch.to_pylist()
    except (pa.ArrowInvalid, OSError):
        pass  # there is none, or it ends here
    return rows


def speak(
    sentences, folder, model=None, options=None, size=32, actors=1, threads=2, gpus=0, at_once=1, speaker=Speaker
):
    """Speaks the batches that have no file yet, and returns their number.

    `actors` have `threads` CPU threads and `gpus` GPUs each, and speak `at_once` sentences at once. The folder must
    be one that all nodes see.
    """
    folder, options = pathlib.Path(folder).resolve(), options or {}
    folder.mkdir(parents=True, exist_ok=True)
    batches = list(batches_of(sentences, size, model, options))
    names, found = {b["file"] for b in batches}, {file.name for file in folder.glob("*.parquet")}
    begun = {file.name[1:].removesuffix(".journal") for file in folder.glob(".*.parquet.journal")}
    if (found | begun) - names:
        problem = "has files of another text, model, option or batch size, such as"
        raise SystemExit(f"{folder} {problem} {min((found | begun) - names)}; choose another folder")
    left = [b for b in batches if b["file"] not in found]
    # What a kill has left: files that were not complete, and journals of files that are.
    for rest in [*folder.glob(".*.part"), *folder.glob(".*.new"), *(folder / f".{n}.journal" for n in begun & found)]:
        rest.unlink()
    if left:
        ray.data.from_items(left).map_batches(
            speaker,
            batch_size=1,
            compute=ActorPoolStrategy(size=actors),
            num_cpus=threads,
            num_gpus=gpus,
            fn_constructor_args=(str(folder), model, options, threads, "cuda" if gpus else "cpu", at_once),
        ).materialize()
    return len(left)


def main():
    parser = argparse.ArgumentParser(description="Speaks a book into Parquet files; goes on after a stop.")
    parser.add_argument("book", type=pathlib.Path, help="text file with a sentence in each line")
    parser.add_argument("folder", type=pathlib.Path, help="folder for the files")
    parser.add_argument("--model", help="name or folder of a model [default: built-in voice]")
    parser.add_argument("--voice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32, help="sentences in a file")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of an actor")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of an actor")
    parser.add_argument(
        "--at-once", type=int, default=1, help="sentences that an actor speaks at once, in one batch of the model"
    )
    args = parser.parse_args()
    sentences = [line.strip() for line in args.book.read_text().splitlines() if line.strip()]
    options = {"seed": args.seed} | ({"voice": args.voice} if args.voice else {})
    spoken = speak(
        sentences,
        args.folder,
        args.model,
        options,
        args.batch_size,
        args.actors,
        args.threads,
        args.gpus,
        args.at_once,
    )
    rows = pq.read_table(args.folder, columns=["sentence", "seconds", "error"]).to_pylist()
    print(f"{spoken} batches spoken; {len(rows)} sentences, {sum(r['seconds'] or 0 for r in rows):.0f} s of audio")
    for bad in (r for r in rows if r["error"]):
        print(f"sentence {bad['sentence']}: {bad['error']}")


if __name__ == "__main__":
    main()

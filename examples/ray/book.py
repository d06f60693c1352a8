#!/usr/bin/env python3
"""Speaks a book with Ray Data into Parquet files. After a stop, or a kill, the same command goes on.

    pip install "ray[data]"                 and Orate, as docs/python.md says
    python book.py book.txt spoken/        book.txt has a sentence in each line

A file has the sentences of a batch: `sentence` (its line, from 0), `text`, `seconds`, `audio` (a complete Opus file)
and `error` (why a sentence cannot be spoken). Batches and names of files follow from the book and the options alone.
An actor writes its batch under a temporary name and renames it, so each file is complete or missing, and all that a
kill costs is the batch that each actor has in hand.
"""

import argparse
import hashlib
import json
import os
import pathlib

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


def batches_of(sentences, size, model, options):
    """Rows of Ray's dataset, a batch each. The name of its file has a hash of all that its sound depends on."""
    for first in range(0, len(sentences), size):
        texts = sentences[first : first + size]
        asked = json.dumps([texts, model, options], sort_keys=True).encode()
        file = f"{first:07}-{hashlib.sha256(asked).hexdigest()[:16]}.parquet"
        yield {"file": file, "first": first, "texts": texts}


class Speaker:
    """An actor. It opens an engine of its own, since engines cannot be sent to another process."""

    def __init__(self, folder, model, options, threads, device):
        self.folder, self.options = pathlib.Path(folder), options
        self.engine = orate.Engine(model, threads=threads, device=device)
        # An unknown voice or option fails here, not as the error of each sentence.
        self.engine.say("Ready.", **options)

    def speak(self, texts):
        """Audio of each text, or why it cannot be spoken. Models with batches speak all texts in common passes."""
        try:
            return self.engine.say_batch(texts, **self.options)
        except orate.InputError as e:
            return [e] if len(texts) == 1 else [self.speak([text])[0] for text in texts]

    def __call__(self, batch):
        for name, first, texts in zip(batch["file"], batch["first"], batch["texts"]):
            file = self.folder / str(name)
            # Ray repeats a batch whose actor died, which may have been after it was written.
            if not file.exists():
                texts = [str(text) for text in texts]
                write(file, [row(int(first) + i, *pair) for i, pair in enumerate(zip(texts, self.speak(texts)))])
        return {"file": batch["file"]}


def row(sentence, text, spoken):
    found = {"sentence": sentence, "text": text}
    if isinstance(spoken, orate.InputError):
        return found | {"error": str(spoken)}
    return found | {"seconds": spoken.duration, "audio": spoken.encode("opus")}


def write(file, rows):
    """Writes a file that is complete or missing, whatever happens."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    with open(part, "wb") as out:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), out)
        out.flush()
        os.fsync(out.fileno())
    part.rename(file)


def speak(sentences, folder, model=None, options=None, size=32, actors=1, threads=2, gpus=0, speaker=Speaker):
    """Speaks the batches that have no file yet, and returns their number.

    `actors` have `threads` CPU threads and `gpus` GPUs each. The folder must be one that all nodes see.
    """
    folder, options = pathlib.Path(folder).resolve(), options or {}
    folder.mkdir(parents=True, exist_ok=True)
    batches = list(batches_of(sentences, size, model, options))
    names, found = {b["file"] for b in batches}, {file.name for file in folder.glob("*.parquet")}
    if found - names:
        problem = "has files of another text, model, option or batch size, such as"
        raise SystemExit(f"{folder} {problem} {min(found - names)}; choose another folder")
    left = [b for b in batches if b["file"] not in found]
    if left:
        for part in folder.glob(".*.part"):
            part.unlink()
        ray.data.from_items(left).map_batches(
            speaker,
            batch_size=1,
            compute=ActorPoolStrategy(size=actors),
            num_cpus=threads,
            num_gpus=gpus,
            fn_constructor_args=(str(folder), model, options, threads, "cuda" if gpus else "cpu"),
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
    args = parser.parse_args()
    sentences = [line.strip() for line in args.book.read_text().splitlines() if line.strip()]
    options = {"seed": args.seed} | ({"voice": args.voice} if args.voice else {})
    spoken = speak(
        sentences, args.folder, args.model, options, args.batch_size, args.actors, args.threads, args.gpus
    )
    rows = pq.read_table(args.folder, columns=["sentence", "seconds", "error"]).to_pylist()
    print(f"{spoken} batches spoken; {len(rows)} sentences, {sum(r['seconds'] or 0 for r in rows):.0f} s of audio")
    for bad in (r for r in rows if r["error"]):
        print(f"sentence {bad['sentence']}: {bad['error']}")


if __name__ == "__main__":
    main()

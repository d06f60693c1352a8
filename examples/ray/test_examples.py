"""The examples with a local Ray on two cores. `scripts/cluster-check` runs this, with the wheel installed."""

import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

import book
import numpy as np
import orate
import pyarrow.parquet as pq
import pytest

HERE = pathlib.Path(__file__).parent
SENTENCES = 500
SIZE = 8
LONG = "The kettle is on, and the morning is quiet. " * 60

# A book whose speaker notes each text that the engine is asked for, and each that it has spoken.
JOB = """
import json, sys
import book, ray

FOLDER, LOG, TEXTS, ACTORS = sys.argv[1:]

def note(what, text):
    with open(LOG, "a") as log:
        log.write(json.dumps([what, text]) + "\\n")

class Noted(book.Speaker):
    def speak(self, text):
        note("asked", text)
        row = super().speak(text)
        note("spoken", text)
        return row

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
texts = json.load(open(TEXTS))
print(book.speak(texts, FOLDER, size=%d, actors=int(ACTORS), threads=1, speaker=Noted))
""" % SIZE


def sentences():
    lines = (HERE.parents[1] / "training/test.txt").read_text().splitlines()
    return [f"{i}. {lines[i % len(lines)]}" for i in range(SENTENCES)]


class Job:
    """A run of the book in processes of its own."""

    def __init__(self, folder, log, texts, actors=2):
        self.mark = uuid.uuid4().hex
        env = os.environ | {"PYTHONPATH": str(HERE), "ORATE_TEST_JOB": self.mark}
        command = [sys.executable, "-c", JOB, folder, log, texts, str(actors)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)

    def result(self):
        out, err = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, err[-4000:]
        return out.strip()

    def processes(self):
        """Ids of this job's processes, which inherit its mark."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended
        return found

    def kill(self):
        """As `kill -9` of everything, as when a machine is lost."""
        for id in self.processes():
            try:
                os.kill(id, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.communicate()
        until(lambda: not self.processes())


def until(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, f"not within {seconds} s"
        time.sleep(0.05)


def noted(log, what="asked"):
    """Texts that engines were asked for, or have spoken."""
    notes = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [text for kind, text in notes if kind == what]


def rows(folder):
    """Rows of all files; each file is read by itself, so that a damaged one shows."""
    return [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_a_killed_book_resumes_and_speaks_no_sentence_twice(tmp_path):
    texts = sentences()
    assert len(set(texts)) == SENTENCES
    place = tmp_path / "texts.json"
    place.write_text(json.dumps(texts))
    folder, logs = tmp_path / "spoken", [tmp_path / "first.log", tmp_path / "second.log"]

    first = Job(folder, logs[0], place)
    until(lambda: len(list(folder.glob("*.parquet"))) >= 20, 200)
    first.kill()
    files = {row["text"] for row in rows(folder)}
    journals = {row["text"] for path in folder.glob(".*.journal") for row in book.read(path)}
    kept, spoken = files | journals, set(noted(logs[0], "spoken"))
    assert kept <= spoken and 20 * SIZE <= len(kept) < SENTENCES
    before = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.parquet")}
    # What a writer leaves that is killed in the middle.
    (folder / ".0000000-0.parquet.part").write_bytes(b"PAR1")

    left = int(Job(folder, logs[1], place).result())
    assert left == -(-(SENTENCES - len(files)) // SIZE)
    asked = [noted(log) for log in logs]
    # What is on the disk is not spoken again: twice is only what each of the two actors had in hand.
    assert sorted(asked[1]) == sorted(set(texts) - kept)
    twice = [text for text, count in collections.Counter(asked[0] + asked[1]).items() if count > 1]
    assert len(twice) <= 2 and len(asked[0] + asked[1]) == SENTENCES + len(twice)
    print(f"killed after {len(kept)} sentences; {len(kept - files)} of them in journals; {len(twice)} spoken again")
    print(f"{len(spoken - kept)} of these had been spoken, and were about to be written")

    done = rows(folder)
    assert [row["sentence"] for row in done] == list(range(SENTENCES))
    assert [row["text"] for row in done] == texts
    assert all(row["audio"][:4] == b"OggS" and row["seconds"] > 0.3 and not row["error"] for row in done)
    assert before.items() <= {f.name: f.stat().st_mtime_ns for f in folder.glob("*.parquet")}.items()
    assert not list(folder.glob(".*"))

    # Sound of before, during and after the kill is that of one process.
    engine = orate.Engine(threads=1)
    for i in sorted({0, SENTENCES - 1} | {texts.index(text) for text in journals | set(twice)}):
        assert engine.say(texts[i]).encode("opus") == done[i]["audio"]
    assert Job(folder, tmp_path / "third.log", place).result() == "0"
    assert noted(tmp_path / "third.log") == []


# A process that dies when half of a file is written, with all sentences in the journal.
HALF = """
import os, pathlib, types
import book

def half(table, out):
    book.pq.write_table = whole
    whole(table, "whole")
    out.write(open("whole", "rb").read()[:500])
    out.flush()
    os._exit(9)

whole, book.pq.write_table = book.pq.write_table, half
speaker = object.__new__(book.Speaker)
speaker.at_once, speaker.speak = 1, lambda text: {"error": text}
speaker.write(pathlib.Path("spoken.parquet"), 0, ["One.", "Two."])
"""


def test_a_half_written_file_is_no_file(tmp_path):
    env = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run([sys.executable, "-c", HALF], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    assert not list(tmp_path.glob("*.parquet"))
    (part,) = tmp_path.glob(".*.part")
    assert part.stat().st_size == 500
    assert [row["text"] for row in book.read(tmp_path / ".spoken.parquet.journal")] == ["One.", "Two."]


def test_a_journal_that_is_cut_off_has_all_complete_rows(tmp_path):
    path, lengths = tmp_path / "a.journal", []
    with book.Journal(path, []) as keep:
        for i in range(3):
            keep({"sentence": i, "text": "One.", "audio": os.urandom(100)})
            lengths.append(path.stat().st_size)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert len(book.read(path)) == sum(length >= complete for complete in lengths)
    # And it goes on.
    path.write_bytes(whole[: lengths[1] + 50])
    with book.Journal(path, book.read(path)) as keep:
        keep({"sentence": 7})
    assert [row["sentence"] for row in book.read(path)] == [0, 1, 7]


def test_a_book_has_errors_as_rows_and_keeps_to_its_folder(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("The first line.\n\n\u6f22\u5b57\nThe last line.\n")
    command = [sys.executable, str(HERE / "book.py"), str(book), str(tmp_path / "spoken"), "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "1 batches spoken; 3 sentences" in done.stdout and "sentence 1: " in done.stdout, done.stdout
    assert [bool(row["audio"]) for row in rows(tmp_path / "spoken")] == [True, False, True]
    # Other options are another book.
    other = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True)
    assert other.returncode != 0 and "choose another folder" in other.stderr


def test_an_unknown_voice_ends_the_book(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("The first line.\n")
    command = [sys.executable, str(HERE / "book.py"), str(book), str(tmp_path / "spoken"), "--voice", "nobody"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "nobody" in done.stderr
    assert not list((tmp_path / "spoken").glob("*.parquet"))


# Serve. A replica speaks one text at once here, and one more may wait.
os.environ |= {"STREAMS": "1", "QUEUE": "1", "THREADS": "1"}
sys.path.insert(0, str(HERE))


LOCAL = """
import sys
import serve as example
from ray import serve

handle = serve.run(example.app, _local_testing_mode=True)
sys.stdout.buffer.write(handle.say.remote("Hello.", seed=7).result())
"""


def test_serve_without_a_cluster():
    # In a process of its own: the application keeps its engine.
    env = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run([sys.executable, "-c", LOCAL], env=env, capture_output=True)
    assert done.stdout == orate.Engine(threads=1).say("Hello.", seed=7).encode("wav"), done.stderr


@pytest.fixture(scope="module")
def server():
    import ray
    import serve as example
    from ray import serve

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": str(HERE)}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": 18080})
    serve.run(example.app)
    yield
    serve.shutdown()
    ray.shutdown()


def post(body):
    connection = http.client.HTTPConnection("127.0.0.1", 18080, timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/audio/speech", json.dumps(body), headers)
    return connection, connection.getresponse()


def say(text, **options):
    """Status and body."""
    connection, response = post({"input": text} | options)
    try:
        return response.status, response.read()
    finally:
        connection.close()


def test_serve_streams_the_samples_of_the_engine(server):
    text = "One paragraph.\n\nAnd another."
    chunks = [chunk.samples for chunk in orate.Engine(threads=1).stream(text, seed=7)]
    expected = (np.clip(np.concatenate(chunks), -1, 1) * 32767).round().astype("<i2").tobytes()
    assert say(text, seed=7) == (200, expected)
    begun = time.time()
    connection, response = post({"input": LONG})
    assert response.status == 200 and response.headers["X-Sample-Rate"] == "24000"
    response.read(4096)
    first = time.time() - begun
    response.read()
    connection.close()
    # Audio comes while the rest is computed.
    assert first < (time.time() - begun) / 2


def test_serve_refuses_what_cannot_be_spoken(server):
    status, body = say("Hello.", voice="nobody")
    assert status == 400 and b"nobody" in body
    assert say("\u6f22\u5b57")[0] == 400
    assert say("")[0] == 422
    assert say("Hello.", loudness=3)[0] == 422


def test_serve_answers_503_when_the_queue_is_full(server):
    with concurrent.futures.ThreadPoolExecutor(6) as clients:
        statuses = [s for s, _ in clients.map(say, [LONG] * 6)]
    assert set(statuses) == {200, 503}, statuses


def test_serve_stops_when_a_client_leaves(server):
    begun = time.time()
    assert say(LONG)[0] == 200
    whole = time.time() - begun
    connection, response = post({"input": LONG * 4})
    response.read(4096)
    response.close()
    connection.close()
    begun = time.time()
    assert say("Hello.")[0] == 200
    assert time.time() - begun < whole

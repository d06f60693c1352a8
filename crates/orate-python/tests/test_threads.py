"""Threads, asyncio, processes, memory, and Ctrl-C."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
from conftest import LONG

import orate


def memory():
    """Resident memory in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_eight_threads_share_an_engine(engine, text):
    expected = [engine.say(text, seed=seed).samples for seed in range(8)]
    got = {}

    def speak(seed):
        for _ in range(3):
            got[seed] = engine.say(text, seed=seed).samples

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(numpy.array_equal(got[seed], expected[seed]) for seed in range(8))


def test_the_gil_is_free_while_computing(engine):
    counted, done = 0, threading.Event()

    def speak():
        engine.say(LONG[:600])
        done.set()

    thread = threading.Thread(target=speak)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        counted += 1
    thread.join()
    # With the GIL held, it would count once in each piece at most.
    assert counted > 100


def test_two_threads_cannot_read_one_stream(engine):
    stream = engine.stream(LONG)

    def read():
        with contextlib.suppress(orate.Cancelled):
            list(stream)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.raises(RuntimeError, match="another thread"):
        while True:
            time.sleep(0.001)
            next(stream)
    stream.close()
    reader.join()


def test_closing_from_another_thread_cancels(engine):
    stream, ended = engine.stream(LONG), []

    def read():
        try:
            list(stream)
            ended.append(None)
        except orate.Error as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    begun = time.perf_counter()
    stream.close()
    reader.join()
    assert time.perf_counter() - begun < 1
    # Between two chunks, it simply ends.
    assert ended == [None] or isinstance(ended[0], orate.Cancelled) and ended[0].kind == "cancelled"


def test_async_streams_are_streams(engine, text):
    async def collect(seed):
        return [chunk async for chunk in engine.astream(text, seed=seed, raw=True)]

    async def both():
        return await asyncio.gather(*(collect(seed) for seed in range(4)))

    for seed, chunks in enumerate(asyncio.run(both())):
        assert [chunk.index for chunk in chunks] == [0, 1]
        samples = numpy.concatenate([chunk.samples for chunk in chunks])
        assert numpy.array_equal(samples, engine.say(text, seed=seed, raw=True).samples)


def computing():
    """Threads of streams that still run."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        # A thread may end in between.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            count += Path(f"/proc/self/task/{task}/comm").read_text() == "orate-astream\n"
    return count


def wait_for_threads():
    begun = time.perf_counter()
    while computing() and time.perf_counter() - begun < 2:
        time.sleep(0.01)
    assert computing() == 0


def test_cancelling_a_task_stops_the_work(engine):
    async def read():
        async for _ in engine.astream(LONG):
            pass

    async def cancel(after):
        task = asyncio.create_task(read())
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def all():
        await asyncio.gather(*(cancel(0.01 * i) for i in range(10)))
        begun = time.perf_counter()
        while computing() and time.perf_counter() - begun < 2:
            await asyncio.sleep(0.01)
        assert computing() == 0, "work goes on"

    asyncio.run(all())


def test_leaving_an_async_stream_stops_the_work(engine):
    async def first():
        async for chunk in engine.astream(LONG):
            return chunk.index

    assert asyncio.run(first()) == 0
    wait_for_threads()


def test_async_streams_compute_at_most_four_chunks_ahead(engine):
    woken = []
    ahead = engine.stream(LONG)._ahead(lambda: woken.append(None))

    def wait_for_chunks(count):
        begun = time.perf_counter()
        while len(woken) < count and time.perf_counter() - begun < 60:
            time.sleep(0.01)
        # Time for further chunks, if there were any.
        time.sleep(0.5)
        return len(woken)

    # The thread has a fourth one, for which there is no room.
    assert wait_for_chunks(3) == 3
    assert computing() == 1, "the thread waits"
    for taken in range(1, 4):
        assert ahead.take().index == taken - 1
        assert wait_for_chunks(3 + taken) == 3 + taken
    ahead.close()
    wait_for_threads()


def test_async_errors_reach_the_task(engine):
    with pytest.raises(orate.InputError):
        engine.astream("", speed=1.0)


def test_a_thousand_streams_do_not_grow(supertonic):
    def begin(**how):
        text = "One sentence.\n\nTwo sentences.\n\nThree."
        return supertonic.stream(text, language="en", steps=1, **how)

    async def leave():
        async for _ in supertonic.astream("One sentence.\n\nTwo sentences.", language="en", steps=1):
            break

    def some(count):
        for i in range(count):
            match i % 4:
                case 0:
                    chunks = list(begin(words=True, tags=True, lexicon={"SQL": "sequel"}))
                    assert [len(chunk.words) for chunk in chunks] == [2, 2, 1]
                case 1:
                    next(begin())
                case 2:
                    stream = begin()
                    next(stream)
                    stream.close()
                case 3:
                    asyncio.run(leave())

    some(200)
    before = memory()
    some(1000)
    assert memory() - before < 4, "MiB"


def speaks_in_a_child(queue, engine=None):
    try:
        queue.put(len((engine or orate.Engine(device="cpu", threads=1)).say("Hello.").samples))
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


def in_a_child(method, *args):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=speaks_in_a_child, args=(queue, *args))
    child.start()
    result = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_engine_raises(engine):
    engine.say("Hello.")
    assert "DeviceError" in in_a_child("fork", engine) and "fork" in in_a_child("fork", engine)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_call_of_a_forked_child_raises(engine, tmp_path):
    stream = engine.stream(LONG)
    next(stream)
    calls = [
        lambda: engine.say("Hello."),
        lambda: engine.say_batch(["Hello."]),
        lambda: engine.stream("Hello."),
        lambda: engine.say("[rate:1] Hello.", tags=True, lexicon={"a": "b"}, voices={"x": engine}),
        lambda: engine.astream("Hello."),
        lambda: engine.warm_up(),
        lambda: engine.clone(b""),
        lambda: engine.convert(tmp_path / "a.wav"),
        lambda: next(stream),
    ]
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        for call in calls:
            try:
                call()
                os.write(writing, b"spoke ")
            except orate.Error:
                os.write(writing, b"raised ")
        os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 1000) == b"raised " * len(calls)
    assert next(stream).index == 1


def test_a_spawned_process_speaks(engine):
    assert in_a_child("spawn") == len(engine.say("Hello.").samples)


INTERRUPTED = """
import orate, sys, time
engine = orate.Engine(device="cpu", threads=2)
engine.say("Warm.")
print("ready", flush=True)
begun = time.perf_counter()
try:
    {call}
except KeyboardInterrupt:
    print(f"interrupted after {{time.perf_counter() - begun:.2f}}", flush=True)
engine.say("Still there.")
print("spoke again", flush=True)
"""


@pytest.mark.parametrize("call", [
    "engine.say({long!r})",
    "list(engine.stream({long!r}))",
    "engine.say_batch([{long!r}] * 3)",
    "orate.serve(engine, port=0, quiet=True)",
])
def test_control_c_stops_the_work(call):
    code = INTERRUPTED.format(call=call.format(long=LONG))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.7)
    child.send_signal(signal.SIGINT)
    sent = time.perf_counter()
    line = child.stdout.readline()
    assert line.startswith("interrupted after"), line
    assert time.perf_counter() - sent < 2
    assert child.stdout.readline() == "spoke again\n"
    assert child.wait(30) == 0


def test_the_process_ends_while_a_stream_computes():
    code = """
import asyncio, orate
engine = orate.Engine(device="cpu", threads=2)
async def first():
    stream = engine.astream({long!r})
    globals()["kept"] = stream
    return (await anext(stream)).index
loop = asyncio.new_event_loop()
print(loop.run_until_complete(first()))
"""
    command = [sys.executable, "-c", code.format(long=LONG)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_call_costs_less_than_a_millisecond(engine):
    # Beside the same call of the library, whose time the stream counts. Other processes only make it slower.
    over = []
    for _ in range(40):
        begun = time.perf_counter()
        stream = engine.stream("Hi.", steps=1)
        samples = [chunk.samples for chunk in stream]
        over.append(time.perf_counter() - begun - stream.seconds)
        assert len(samples) == 1
    over.sort()
    print(f"\noverhead of a call: median {1e6 * over[20]:.0f} us, least {1e6 * over[0]:.0f} us")
    assert 0 < over[0] < 1e-3

#!/usr/bin/env python3
"""Many clients of a server at once: answers are right, memory is flat, nothing is left.

    benches/server_load.py [PROGRAM] [SECONDS] [CLIENTS] [-- OPTIONS OF orate serve]

Each client picks a text, a format and a manner: it reads everything, reads slowly, leaves in the middle, or
sends half a request. Whole answers are compared with those to the same request alone, and these with
`orate say` of the same seed. Standard library only.
"""
import asyncio, json, os, random, socket, statistics, subprocess, sys, tempfile, time, wave

TEXTS = [
    "Good morning.",
    "The kettle is on, and the day is yours.",
    "What shall we read first? There is a book on the table, and another one on the shelf.",
    "She sells sea shells by the sea shore. " * 4,
    "A long one fills the buffers of a slow reader, so that the server has to wait for it. " * 12,
]
FORMATS = ["pcm", "wav", "mp3", "opus", "flac"]

arguments = sys.argv[1:]
options = arguments[arguments.index("--") + 1:] if "--" in arguments else []
arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
program = arguments[0] if arguments else "target/release/orate"
seconds = float(arguments[1]) if len(arguments) > 1 else 60
clients = int(arguments[2]) if len(arguments) > 2 else 64
model = options[options.index("--model"):][:2] if "--model" in options else []


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


port = free_port()


async def send(body, cut=None):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    body = json.dumps(body).encode()
    head = ("POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n").encode()
    writer.write((head + body)[:cut])
    await writer.drain()
    return reader, writer


async def status_of(reader):
    line = await reader.readline()
    if not line:
        return 0
    status = int(line.split()[1])
    while (await reader.readline()).strip():
        pass
    return status


async def chunks(reader):
    """The parts of a chunked body; an error where it breaks off."""
    while True:
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        part = (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return
        yield part


async def get(path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def metric(name):
    lines = (await get("/metrics")).decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def request(rng):
    text, format = rng.choice(TEXTS), rng.choice(FORMATS)
    return {"model": "tts-1", "input": text, "response_format": format, "seed": rng.randrange(2)}


def key(body):
    return (body["input"], body["response_format"], body["seed"])


async def whole(body):
    reader, writer = await send(body)
    status = await status_of(reader)
    parts = [part async for part in chunks(reader)] if status == 200 else []
    writer.close()
    return status, b"".join(parts)


async def client(number, end, alone, counts, firsts):
    rng = random.Random(number)
    while time.time() < end:
        body, manner = request(rng), rng.choices(["whole", "slow", "leave", "half"], [6, 2, 2, 1])[0]
        begun = time.time()
        reader, writer = await send(body, rng.randrange(20, 150) if manner == "half" else None)
        if manner == "half":
            await asyncio.sleep(rng.random())
            writer.close()
            counts["half"] += 1
            continue
        status = await status_of(reader)
        if status == 503:
            counts["full"] += 1
            writer.close()
            await asyncio.sleep(rng.random())
            continue
        assert status == 200, status
        got, first = [], None
        async for part in chunks(reader):
            first = first or time.time() - begun
            got.append(part)
            if manner == "slow":
                await asyncio.sleep(0.05)
            if manner == "leave" and rng.random() < 0.5:
                break
        writer.close()
        if manner == "leave":
            counts["left"] += 1
            continue
        firsts.append(first)
        assert b"".join(got) == alone[key(body)], ("another answer", key(body))
        counts[manner] += 1


async def main():
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--device", "cpu", "--quiet", *options]
    process = subprocess.Popen(command)
    try:
        for _ in range(600):
            try:
                if b"200 OK" in await get("/ready"):
                    break
            except OSError:
                pass
            await asyncio.sleep(0.1)
        alone = {}
        for text in TEXTS:
            for format in FORMATS:
                for seed in range(2):
                    body = {"model": "tts-1", "input": text, "response_format": format, "seed": seed}
                    status, alone[key(body)] = await whole(body)
                    assert status == 200, status
        for text in TEXTS:
            # The same samples as of the program, whose files have a header.
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "a.wav")
                say = [program, "say", text, "-o", path, "--seed", "1", "--device", "cpu", "--quiet"]
                subprocess.run([*say, *model], check=True)
                with wave.open(path) as file:
                    assert file.readframes(file.getnframes()) == alone[text, "wav", 1][44:], text
        counts = dict.fromkeys(["whole", "slow", "left", "half", "full"], 0)
        firsts, memory, begun = [], [], time.time()
        end = begun + seconds

        async def watch():
            while time.time() < end:
                await asyncio.sleep(min(5, seconds / 10))
                memory.append((time.time() - begun, await metric("process_resident_memory_bytes") / 1e6))

        await asyncio.gather(watch(), *(client(i, end, alone, counts, firsts) for i in range(clients)))
        for _ in range(100):
            left = await metric("orate_requests_running") + await metric("orate_requests_waiting")
            if not left:
                break
            await asyncio.sleep(0.05)
        assert left == 0, f"{left} requests are left"
        assert await metric("orate_panics") == 0
        firsts.sort()
        settled = [mb for at, mb in memory if at > min(60, seconds / 3)]
        print(f"{sum(counts.values())} requests in {seconds:.0f} s: {counts}")
        late = firsts[int(0.95 * len(firsts))]
        print(f"first sound: median {statistics.median(firsts):.3f} s, 95 % {late:.3f} s")
        print(f"memory: {min(settled):.0f} to {max(settled):.0f} MB")
        print(f"{len(os.listdir(f'/proc/{process.pid}/task'))} threads at the end")
    finally:
        process.terminate()
        assert process.wait(60) == 0


asyncio.run(main())

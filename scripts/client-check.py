#!/usr/bin/env python3
"""Foreign clients against a server: openai, elevenlabs, wyoming, websockets; PyAV decodes every format.

    pip install openai elevenlabs wyoming websockets av httpx
    scripts/client-check.py [PROGRAM]       the program is target/release/orate otherwise
"""
import asyncio, base64, io, json, os, socket, subprocess, sys, tempfile, threading, time

import av, httpx, openai, websockets

TEXT = "Hello there. How are you today?"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def seconds(data, format):
    """Length of sound as PyAV decodes it."""
    with av.open(io.BytesIO(data), format=format) as file:
        samples = rate = 0
        try:
            for frame in file.decode(audio=0):
                samples += frame.samples
                rate = frame.sample_rate
        except av.error.InvalidDataError:
            pass  # the last frame of a part is cut
        return samples / rate


class Server:
    def __init__(self, program, *args):
        self.port, self.wyoming = free_port(), free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        command = [program, "serve", "--listen", f"127.0.0.1:{self.port}",
                   "--wyoming", f"127.0.0.1:{self.wyoming}", "--device", "cpu", *args]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stderr=self.log)
        for _ in range(600):
            try:
                if httpx.get(self.base + "/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit("the server did not get ready:\n" + self.text())

    def text(self):
        self.log.seek(0)
        return self.log.read().decode()

    def metric(self, name):
        lines = httpx.get(self.base + "/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def openai_client(server):
    client = openai.OpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0)
    lengths = {}
    for format, container in [("mp3", "mp3"), ("opus", "ogg"), ("flac", "flac"), ("wav", "wav")]:
        whole = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format=format)
        lengths[format] = seconds(whole.content, container)
        # A stream that breaks off still plays to there.
        part = seconds(whole.content[: len(whole.content) * 2 // 3], container)
        assert 0.3 < part < lengths[format], (format, part)
    pcm = client.audio.speech.create(model="tts-1", voice="nova", input=TEXT, response_format="pcm").content
    lengths["pcm"] = len(pcm) / 2 / 24000
    assert all(abs(x - lengths["wav"]) < 0.15 or f == "pcm" for f, x in lengths.items()), lengths
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice={"id": "alloy"}, input=TEXT * 10, response_format="pcm"
    ) as response:
        first = next(response.iter_bytes(4096))
        assert len(first) > 100
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse", extra_body={"seed": 3}
    ) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        events = [json.loads(line[6:]) for line in lines]
        assert events[-1]["type"] == "speech.audio.done" and events[-1]["usage"]["total_tokens"] > 0
        assert sum(len(base64.b64decode(e["audio"])) for e in events[:-1]) > 20000
    for wrong, kind in [({"voice": "nobody"}, openai.BadRequestError), ({"model": "x"}, openai.NotFoundError)]:
        try:
            client.audio.speech.create(**{"model": "tts-1", "voice": "alloy", "input": TEXT, **wrong})
            raise AssertionError("no error")
        except kind as e:
            assert e.code and e.param and e.request_id, vars(e)
    assert client.models.list().data[0].id == "orate-default"
    print("openai", openai.__version__, {f: round(x, 2) for f, x in lengths.items()})


async def sockets(server):
    async with websockets.connect(f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream") as ws:
        await ws.send(json.dumps({"type": "session.config", "voice": "alloy"}))
        for part in ["Good mor", "ning. How a", "re you? I am", " fine"]:
            await ws.send(json.dumps({"type": "input.text", "text": part}))
        await ws.send(json.dumps({"type": "input.done"}))
        sentences, sound = [], 0
        while True:
            message = await asyncio.wait_for(ws.recv(), 30)
            if isinstance(message, bytes):
                sound += len(message)
                continue
            message = json.loads(message)
            if message["type"] == "audio.start":
                sentences.append(message["sentence_text"])
            if message["type"] == "session.done":
                break
            assert message["type"] != "error", message
        assert sentences == ["Good morning.", "How are you?", "I am fine"] and sound > 50000, (sentences, sound)
        # Another utterance, cut off.
        await ws.send(json.dumps({"type": "input.text", "text": TEXT * 50 + " "}))
        while not isinstance(await asyncio.wait_for(ws.recv(), 30), bytes):
            pass
        await ws.send(json.dumps({"type": "input.cancel"}))
        while True:
            message = await asyncio.wait_for(ws.recv(), 30)
            if isinstance(message, str) and json.loads(message)["type"] == "session.done":
                assert json.loads(message)["cancelled"]
                break
        for wrong in ["no JSON", "[]", '{"type":"x"}', '{"type":"input.text"}']:
            await ws.send(wrong)
            assert json.loads(await ws.recv())["type"] == "error"
    # A page of another origin may not connect.
    try:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream", origin="http://evil.example"):
            raise AssertionError("connected")
    except websockets.InvalidStatus as e:
        assert e.response.status_code == 403
    print("websockets", websockets.__version__)
    url = f"ws://127.0.0.1:{server.port}/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000"
    async with websockets.connect(url) as ws:
        await ws.send(json.dumps({"text": " ", "context_id": "a"}))
        await ws.send(json.dumps({"text": "Hello from a. ", "context_id": "a", "flush": True}))
        await ws.send(json.dumps({"text": "Hello from b.", "context_id": "b", "flush": True}))
        await ws.send(json.dumps({"context_id": "a", "close_context": True}))
        await ws.send(json.dumps({"close_socket": True}))
        sound, ended = {}, []
        async for message in ws:
            message = json.loads(message)
            id = message["contextId"]
            if message.get("isFinal"):
                ended.append(id)
            else:
                sound[id] = sound.get(id, 0) + len(base64.b64decode(message["audio"]))
        assert sorted(ended) == ["a", "b"] and min(sound.values()) > 10000, (sound, ended)
        assert ws.close_code == 1000
    print("multi-stream-input", sound)


def elevenlabs_client(server):
    import elevenlabs
    from elevenlabs.client import ElevenLabs

    client = ElevenLabs(api_key="none", base_url=server.base)
    sound = b"".join(client.text_to_speech.stream("alloy", text=TEXT, output_format="pcm_24000"))
    assert len(sound) > 50000, len(sound)
    sound = b"".join(client.text_to_speech.convert("alloy", text=TEXT, output_format="mp3_44100_128"))
    assert seconds(sound, "mp3") > 1
    # The client knows only wss; a proxy has the certificate elsewhere.
    client.text_to_speech._ws_base_url = server.base.replace("http", "ws")
    parts = iter(["Hello from a ", "language model. ", "It speaks ", "while it thinks."])
    sound = b"".join(client.text_to_speech.convert_realtime("alloy", text=parts, output_format="pcm_24000"))
    assert len(sound) > 50000, len(sound)
    print("elevenlabs", getattr(elevenlabs, "__version__", ""), len(sound))


async def wyoming_client(server):
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.info import Describe, Info
    from wyoming.tts import (Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped,
                             SynthesizeVoice)

    async with AsyncTcpClient("127.0.0.1", server.wyoming) as client:
        begun = time.time()
        await client.write_event(Describe().event())
        info = Info.from_event(await client.read_event())
        assert info.tts[0].supports_synthesize_streaming and info.tts[0].voices, info
        assert time.time() - begun < 0.1

        async def sound(until):
            kinds, count = [], 0
            while True:
                event = await asyncio.wait_for(client.read_event(), 60)
                assert event is not None and event.type != "error", event
                if AudioChunk.is_type(event.type):
                    count += len(AudioChunk.from_event(event).audio)
                    if kinds[-1:] == ["audio-chunk"]:
                        continue
                kinds.append(event.type)
                if event.type == until:
                    return kinds, count

        voice = SynthesizeVoice(name=info.tts[0].voices[0].name)
        await client.write_event(Synthesize(text=TEXT, voice=voice).event())
        kinds, count = await sound("audio-stop")
        assert kinds == ["audio-start", "audio-chunk", "audio-stop"] and count > 50000, (kinds, count)
        # Home Assistant sends the whole text again in the middle.
        await client.write_event(SynthesizeStart(voice=voice).event())
        for part in ["First sent", "ence. And the se", "cond one."]:
            await client.write_event(SynthesizeChunk(text=part).event())
        await client.write_event(Synthesize(text="First sentence. And the second one.", voice=voice).event())
        await client.write_event(SynthesizeStop().event())
        kinds, count = await sound("synthesize-stopped")
        assert kinds == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"], kinds
        assert count > 50000, count
    print("wyoming", kinds, count)


def leaving(server):
    """Clients that leave end the work; a slow one hinders nobody."""
    before = server.metric("orate_cancelled_total")
    with httpx.stream("POST", server.base + "/v1/audio/speech", json={
            "model": "tts-1", "input": TEXT * 200, "response_format": "pcm"}, timeout=60) as response:
        next(response.iter_raw())
    begun = time.time()
    while server.metric("orate_requests_running"):
        assert time.time() - begun < 1, "it goes on speaking"
        time.sleep(0.02)
    assert server.metric("orate_cancelled_total") == before + 1
    print("a client that leaves: stopped after", round(time.time() - begun, 3), "s")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "target/release/orate"
    server = Server(program)
    try:
        openai_client(server)
        asyncio.run(sockets(server))
        elevenlabs_client(server)
        asyncio.run(wyoming_client(server))
        leaving(server)
    finally:
        server.process.terminate()
        status = server.process.wait(20)
    assert status == 0, (status, server.text())
    print("all clients are content")


main()

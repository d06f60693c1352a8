#!/usr/bin/env python3
"""Foreign clients against a server; PyAV decodes every format, whole and cut.

    pip install httpx av openai websockets elevenlabs wyoming
    pip install livekit-plugins-openai livekit-plugins-elevenlabs "pipecat-ai[openai,elevenlabs]"
    scripts/client-check.py [PROGRAM] [--clients openai,websockets,…]

PROGRAM is target/release/orate by default, and all clients run. A client that runs must be installed.
"""
import argparse, asyncio, base64, concurrent.futures, io, json, os, socket, subprocess, tempfile, time

import av, httpx

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


def until(condition):
    end = time.time() + 30
    while not condition():
        assert time.time() < end, "not within 30 s"
        time.sleep(0.02)


class Server:
    def __init__(self, program, *args):
        self.program, self.port, self.wyoming = program, free_port(), free_port()
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
    import openai

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
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse",
        extra_body={"seed": 3},
    ) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        events = [json.loads(line[6:]) for line in lines]
        assert events[-1]["type"] == "speech.audio.done" and events[-1]["usage"]["total_tokens"] > 0
        assert sum(len(base64.b64decode(e["audio"])) for e in events[:-1]) > 20000
    wrongs = [({"voice": "nobody"}, openai.BadRequestError), ({"model": "x"}, openai.NotFoundError)]
    for wrong, kind in wrongs:
        try:
            client.audio.speech.create(**{"model": "tts-1", "voice": "alloy", "input": TEXT, **wrong})
            raise AssertionError("no error")
        except kind as e:
            assert e.code and e.param and e.request_id, vars(e)
    assert client.models.list().data[0].id == "orate-default"
    print("openai", openai.__version__, {f: round(x, 2) for f, x in lengths.items()})


def busy_openai_client(server):
    """The client meets a full queue: its error, and its own repetitions."""
    import openai

    server = Server(server.program, "--streams", "1", "--queue", "1")
    client = openai.OpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0)
    say = dict(model="tts-1", voice="alloy", response_format="pcm")
    waiting = None
    try:
        # One request speaks, as nobody reads its answer, and one waits.
        with client.audio.speech.with_streaming_response.create(input=TEXT * 600, **say) as response:
            sound = response.iter_bytes(4096)
            next(sound)
            with concurrent.futures.ThreadPoolExecutor() as threads:
                waiting = threads.submit(client.audio.speech.create, input=TEXT, **say)
                until(lambda: server.metric("orate_requests_waiting") == 1)
                try:
                    client.audio.speech.create(input=TEXT, **say)
                    raise AssertionError("no error")
                except openai.InternalServerError as e:
                    assert (e.status_code, e.code, e.type) == (503, "overloaded", "server_error"), vars(e)
                    assert e.response.headers["retry-after"] == "1"
                # With repetitions, the client succeeds when the first request leaves.
                begun = time.time()
                patient = client.with_options(max_retries=5)
                repeats = threads.submit(patient.audio.speech.create, input=TEXT, **say)
                until(lambda: 'status="503"} 2' in httpx.get(server.base + "/metrics").text)
                response.close()
                whole = repeats.result(60).content
                assert 0.9 < time.time() - begun, "it did not wait for Retry-After"
                assert whole == waiting.result(60).content and len(whole) > 20000
        print("openai with a full queue: 503 overloaded, then", len(whole), "bytes")
    finally:
        server.process.terminate()
        server.process.wait(40)


async def sockets(server):
    import websockets

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
        assert sentences == ["Good morning.", "How are you?", "I am fine"], sentences
        assert sound > 50000, sound
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
        url = f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream"
        async with websockets.connect(url, origin="http://evil.example"):
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
    timed = client.text_to_speech.convert_with_timestamps("alloy", text=TEXT)
    length = seconds(base64.b64decode(timed.audio_base_64), "mp3")
    assert "".join(timed.alignment.characters) == TEXT
    assert abs(timed.alignment.character_end_times_seconds[-1] - length) < 0.2, (timed.alignment, length)
    lines = list(client.text_to_speech.stream_with_timestamps("alloy", text=TEXT))
    assert "".join(c for line in lines if line.alignment for c in line.alignment.characters) == TEXT
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


async def livekit_client(server):
    from livekit.agents import APIConnectOptions, APIStatusError
    from livekit.plugins import elevenlabs, openai

    import aiohttp

    once, url = APIConnectOptions(max_retry=0), server.base + "/v1"
    lengths = {}
    # The plugin requests events, except for tts-1.
    sse = "gpt-4o-mini-tts"
    for model, format in [(sse, "mp3"), ("tts-1", "mp3"), ("tts-1", "pcm"), (sse, "opus")]:
        tts = openai.TTS(model=model, response_format=format, base_url=url, api_key="none")
        frame = await tts.synthesize(TEXT, conn_options=once).collect()
        lengths[model, format] = frame.duration
        assert frame.sample_rate == 24000 and abs(frame.duration - lengths[sse, "mp3"]) < 0.2, lengths
        await tts.aclose()
    tts = openai.TTS(voice="nobody", base_url=url, api_key="none")
    try:
        await tts.synthesize(TEXT, conn_options=once).collect()
        raise AssertionError("no error")
    except APIStatusError as e:
        assert e.status_code == 400 and "nobody" in str(e), e
    await tts.aclose()
    async with aiohttp.ClientSession() as session:
        tts = elevenlabs.TTS(voice_id="alloy", api_key="none", base_url=url, http_session=session)
        frame = await tts.synthesize(TEXT, conn_options=once).collect()
        stream = tts.stream(conn_options=once)
        for part in ["Hello the", "re. How are you", " today?"]:
            stream.push_text(part)
        stream.end_input()
        streamed = sum([event.frame.duration async for event in stream])
        await stream.aclose()
        await tts.aclose()
    assert min(frame.duration, streamed) > 1, (frame.duration, streamed)
    lengths |= {"elevenlabs": frame.duration, "stream-input": streamed}
    print("livekit", {f: round(x, 2) for f, x in lengths.items()})


async def pipecat_client(server):
    from loguru import logger
    from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.pipeline.worker import PipelineParams
    from pipecat.tests.utils import SleepFrame, run_test

    logger.remove()
    params = PipelineParams(audio_out_sample_rate=24000)
    openai = OpenAITTSService(api_key="none", base_url=server.base + "/v1")
    settings = ElevenLabsTTSService.Settings(voice="alloy")
    ws = server.base.replace("http", "ws")
    elevenlabs = ElevenLabsTTSService(api_key="none", url=ws, settings=settings)
    lengths = {}
    for service in [openai, elevenlabs]:
        frames = [SleepFrame(0.5), TTSSpeakFrame(TEXT), SleepFrame(5.0)]
        down, up = await run_test(service, frames_to_send=frames, pipeline_params=params)
        errors = [frame for frame in [*down, *up] if isinstance(frame, ErrorFrame)]
        sound = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
        assert not errors and all(frame.sample_rate == 24000 for frame in sound), errors
        lengths[type(service).__name__] = sum(len(frame.audio) for frame in sound) / 48000
    assert min(lengths.values()) > 1, lengths
    print("pipecat", {f: round(x, 2) for f, x in lengths.items()})


def leaving(server):
    """A client that leaves ends its request."""
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


CLIENTS = {
    "openai": openai_client,
    "openai-busy": busy_openai_client,
    "websockets": lambda server: asyncio.run(sockets(server)),
    "elevenlabs": elevenlabs_client,
    "wyoming": lambda server: asyncio.run(wyoming_client(server)),
    "livekit": lambda server: asyncio.run(livekit_client(server)),
    "pipecat": lambda server: asyncio.run(pipecat_client(server)),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default="target/release/orate")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    arguments = parser.parse_args()
    chosen = arguments.clients.split(",")
    unknown = set(chosen) - set(CLIENTS)
    if unknown:
        parser.error(f"no such client: {', '.join(unknown)}; choose from {', '.join(CLIENTS)}")
    server = Server(arguments.program)
    try:
        for name in chosen:
            CLIENTS[name](server)
        leaving(server)
    finally:
        server.process.terminate()
        status = server.process.wait(20)
    assert status == 0, (status, server.text())
    left_out = [name for name in CLIENTS if name not in chosen]
    print("passed:", ", ".join(chosen))
    if left_out:
        print("NOT RUN:", ", ".join(left_out))


main()

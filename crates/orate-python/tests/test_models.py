"""Other families: voices, clones, conversion, downloads."""

import copy
import hashlib
import http.server
import json
import multiprocessing
import os
import pickle
import threading
import warnings
import wave
from pathlib import Path

import numpy
import pytest
from conftest import ORACLE

import orate


def same(one, two):
    return numpy.array_equal(one.samples, two.samples)


def test_voices_are_named_mixed_or_files(supertonic):
    assert supertonic.family == "Supertonic" and supertonic.voices == ["F1", "M1"]
    one, other = (supertonic.say("Hello.", voice=voice, language="en") for voice in supertonic.voices)
    assert not same(one, other)
    file = ORACLE / "supertonic/golden/tiny/voice_styles/M1.json"
    assert same(supertonic.say("Hello.", voice=file, language="en"), other)
    assert not same(supertonic.say("Hello.", voice="F1:0.5+M1:0.5", language="en"), one)
    with pytest.raises(orate.InputError, match="F7.*F1, M1"):
        supertonic.say("Hello.", voice="F7", language="en")
    with pytest.raises(orate.InputError, match="xx"):
        supertonic.say("Hello.", language="xx")


def test_a_voice_is_made_kept_and_spoken_with(chatterbox, recording, tmp_path):
    assert chatterbox.can_clone and chatterbox.family == "Chatterbox"
    voice = chatterbox.clone(recording)
    spoken = chatterbox.say("Hello.", voice=voice, seed=3)
    assert same(chatterbox.say("Hello.", voice=chatterbox.clone(recording.read_bytes()), seed=3), spoken)
    assert not same(chatterbox.say("Hello.", seed=3), spoken)

    voice.save(tmp_path / "me.safetensors")
    voice.save(tmp_path / "me.safetensors")
    for kept in [orate.Voice.load(tmp_path / "me.safetensors"), tmp_path / "me.safetensors"]:
        assert same(chatterbox.say("Hello.", voice=kept, seed=3), spoken)

    voices = orate.voices()
    voices["me"] = voice
    assert list(voices) == ["me"] and len(voices) == 1 and "me" in voices and "you" not in voices
    assert same(chatterbox.say("Hello.", voice="me", seed=3), spoken)
    assert same(chatterbox.say("Hello.", voice=voices["me"], seed=3), spoken)
    with pytest.raises(orate.InputError, match="no voice `you` is kept.*me"):
        chatterbox.say("Hello.", voice="you")
    del voices["me"]
    assert list(voices) == []
    with pytest.raises(orate.InputError, match="letters, digits"):
        voices["../me"] = voice


def test_voices_are_bytes(chatterbox, recording, tmp_path):
    voice = chatterbox.clone(recording)
    voice.save(tmp_path / "me.safetensors")
    spoken = chatterbox.say("Hello.", voice=voice, max_codes=30)
    of_file = orate.Voice((tmp_path / "me.safetensors").read_bytes())
    pickled = pickle.loads(pickle.dumps(voice))
    for again in [of_file, orate.Voice(voice.to_bytes()), pickled, copy.deepcopy(voice)]:
        assert again.family == voice.family and len(again.to_bytes()) == len(voice.to_bytes())
        assert same(chatterbox.say("Hello.", voice=again, max_codes=30), spoken)
    for damaged in [b"", b"RIFF", voice.to_bytes()[:-1]]:
        with pytest.raises(orate.ModelError, match="the voice"):
            orate.Voice(damaged)
    with pytest.raises(TypeError, match="str"):
        orate.Voice("me.safetensors")


def speaks_in_a_child(queue, voice):
    engine = orate.Engine(os.environ["ORATE_TEST_CHATTERBOX"], device="cpu", threads=2)
    audio = engine.say("Hello.", voice=voice, max_codes=30, words=True)
    queue.put(audio)


def test_voices_and_audio_go_through_processes(chatterbox, recording):
    voice, context = chatterbox.clone(recording), multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=speaks_in_a_child, args=(queue, voice))
    child.start()
    audio = queue.get(timeout=60)
    child.join(60)
    own = chatterbox.say("Hello.", voice=voice, max_codes=30, words=True)
    assert child.exitcode == 0 and same(audio, own) and audio.words == own.words != ()


def test_samples_can_be_cloned(chatterbox, recording):
    with wave.open(str(recording)) as file:
        pcm = numpy.frombuffer(file.readframes(file.getnframes()), "<i2")
        audio = orate.Audio(pcm.astype(numpy.float32) / 32768, file.getframerate())
        assert file.getnchannels() == 1
    by_samples, by_file = chatterbox.clone(audio), chatterbox.clone(recording)
    assert same(chatterbox.say("Hello.", voice=by_samples), chatterbox.say("Hello.", voice=by_file))
    with pytest.raises(orate.Error, match="silent|short"):
        chatterbox.clone(orate.Audio(numpy.zeros(48_000, numpy.float32), 24_000))
    with pytest.raises(orate.InputError, match="^the recording: sample 7 is NaN, which is not audio"):
        chatterbox.clone(orate.Audio(numpy.where(numpy.arange(48_000) == 7, numpy.nan, 0.1), 24_000))
    with pytest.warns(UserWarning, match="transcript has no effect, Chatterbox models take the voice alone"):
        chatterbox.clone(recording, transcript="What is said.")


def test_a_voice_of_another_model_is_refused(engine, chatterbox, recording):
    with pytest.raises(orate.Error, match="clone|voices"):
        engine.say("Hello.", voice=chatterbox.clone(recording))


def test_recordings_are_converted(chatterbox, recording):
    voice, source = chatterbox.clone(recording), ORACLE / "chatterbox/golden/source.wav"
    shown = []
    converted = chatterbox.convert(source, voice=voice, seed=5, progress=lambda *both: shown.append(both))
    assert converted.duration > 0.5 and converted.sample_rate == 24_000
    assert same(chatterbox.convert(str(source), voice=voice, seed=5), converted)
    assert shown and shown[-1][0] == shown[-1][1]
    again = chatterbox.convert(converted, voice=voice, seed=5)
    assert abs(again.duration - converted.duration) < 0.5
    assert converted.words == () and converted.marks == ()
    with pytest.raises(orate.Error, match="none.wav"):
        chatterbox.convert("none.wav", voice=voice)
    # The sound is always the model's own, so there is nothing to switch off.
    for wrong in [{"zzz": 1}, {"raw": True}, {"words": True}, {"language": "en"}]:
        with pytest.raises(TypeError, match=r"convert\(\) got .*; it has .*voice, seed"):
            chatterbox.convert(converted, voice=voice, **wrong)
    with pytest.raises(TypeError, match=r"it has progress, voice, seed, steps, flow_guidance$"):
        chatterbox.convert(converted, voice=voice, zzz=1)
    by_bytes = chatterbox.convert(source.read_bytes(), voice=voice, seed=5)
    assert same(by_bytes, converted)


def test_speech_that_was_cut_is_a_warning(chatterbox):
    def reason(seed):
        return list(chatterbox.stream("Hi.", seed=seed, retries=0))[-1].finish_reason

    cut = next(seed for seed in range(50) if reason(seed) == "runaway")
    with pytest.warns(UserWarning, match="^the speech ran away and was cut; another seed may do better$"):
        chatterbox.say("Hi.", seed=cut, retries=0)
    with pytest.warns(UserWarning, match="ran away") as caught:
        chatterbox.say_batch(["Hi.", "Hi."], seed=cut, retries=0)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chatterbox.say("Hi.", seed=cut, max_codes=5)


def test_arrays_are_converted_to_arrays(chatterbox, recording):
    with wave.open(str(ORACLE / "chatterbox/golden/source.wav")) as file:
        pcm, rate = numpy.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()
        assert file.getnchannels() == 1
    samples = pcm.astype(numpy.float32) / 32768
    voice = chatterbox.clone(recording)
    by_file = chatterbox.convert(ORACLE / "chatterbox/golden/source.wav", voice=voice, seed=5)
    by_array = chatterbox.convert(orate.Audio(samples, rate), voice=voice, seed=5)
    assert by_array.samples.dtype == numpy.float32 and by_array.samples.ndim == 1
    assert same(by_array, by_file) and by_array.sample_rate == by_file.sample_rate
    # Any view of floats will do, and none is changed.
    before = samples.copy()
    doubled = numpy.repeat(samples.astype(numpy.float64), 2)[::2]
    assert same(chatterbox.convert(orate.Audio(doubled, rate), voice=voice, seed=5), by_file)
    assert numpy.array_equal(samples, before)
    with pytest.raises(orate.InputError, match="the source: this recording is silent"):
        chatterbox.convert(orate.Audio(0 * samples, rate), voice=voice)
    with pytest.raises(orate.InputError, match="the source: only .* s of this recording"):
        chatterbox.convert(orate.Audio(samples[rate // 2:rate // 2 + rate // 50], rate), voice=voice)
    with pytest.raises(TypeError):
        chatterbox.convert(samples, voice=voice)


def test_own_options_reach_the_model(chatterbox):
    assert {"temperature", "exaggeration"} <= chatterbox.options.keys()
    plain = chatterbox.say("Hello.", max_codes=40)
    assert not same(chatterbox.say("Hello.", max_codes=40, temperature=1.5), plain)
    with pytest.raises(orate.InputError, match="temperature"):
        chatterbox.say("Hello.", temperature=-1)
    chunks = list(chatterbox.stream("Hello there.", max_codes=40))
    assert chunks[-1].finish_reason in {"stop", "length", "runaway"}


FILES = {
    f"{path.parent.name}/{path.name}": path.read_bytes()
    for folder in ("onnx", "voice_styles")
    for path in (ORACLE / "supertonic/golden/tiny" / folder).iterdir()
}
REPO, COMMIT = "Supertone/supertonic-2", "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """An imitation of the hub with one model."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        blob = {
            name: hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() for name, data in FILES.items()
        }
        path, headers, body = self.path.split("?")[0], {}, b""
        if path == f"/api/models/{REPO}/revision/main":
            siblings = [
                {"rfilename": name, "size": len(data), "blobId": blob[name]} for name, data in FILES.items()
            ]
            about = {"id": REPO, "sha": COMMIT, "private": False, "siblings": siblings, "tags": []}
            body = json.dumps(about).encode()
        else:
            name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
            if name in FILES:
                headers, body = {"X-Repo-Commit": COMMIT, "ETag": f'"{blob[name]}"'}, FILES[name]
        self.send_response(200 if body else 404)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()


def test_models_are_pulled_and_opened_by_name(hub, tmp_path):
    shown = []
    path = orate.pull("supertonic-2", progress=lambda done, total: shown.append((done, total)))
    assert path == tmp_path / f"hub/hub/models--Supertone--supertonic-2/snapshots/{COMMIT}"
    assert shown[-1] == (sum(map(len, FILES.values())),) * 2
    assert orate.Engine("supertonic-2", device="cpu").voices == ["F1", "M1"]
    assert orate.pull("supertonic-2") == path
    assert orate.pull(REPO, to=tmp_path / "own", include=["voice_styles/*"]) == tmp_path / "own"
    assert sorted(file.name for file in (tmp_path / "own/voice_styles").iterdir()) == ["F1.json", "M1.json"]


def test_failed_pulls_are_errors(hub, tmp_path, monkeypatch):
    with pytest.raises(orate.InputError, match="no known model"):
        orate.pull("what?")
    with pytest.raises(orate.Error, match="somebody/else"):
        orate.pull("somebody/else")

    def fail(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        orate.pull("supertonic-2", progress=fail)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(orate.Error, match="supertonic-2"):
        orate.pull("supertonic-2")
    assert not Path(tmp_path / "hub/hub/models--Supertone--supertonic-2/snapshots").exists()

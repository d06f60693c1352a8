"""Engine: options, streams, errors, and the same samples as the program."""

import copy
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from conftest import ORACLE

import orate


INSTALLED = Path(sys.executable).with_name("orate")


def program(*args):
    """The program that the environment variable ORATE names, or the one of the package."""
    return subprocess.run([os.environ.get("ORATE", INSTALLED), *args], check=True, capture_output=True)


@pytest.mark.parametrize("options", [{}, {"seed": 7, "speed": 1.25}, {"steps": 3, "silence": 1.0}])
def test_samples_are_those_of_the_program(engine, text, tmp_path, options):
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    program("say", text, "--device", "cpu", "--threads", "2", "-q", *flags, "-o", tmp_path / "finished.wav")
    assert engine.say(text, **options).encode("wav") == (tmp_path / "finished.wav").read_bytes()
    # What is piped is a stream, whose loudness is not measured.
    flags, options = [*flags, "--raw"], {**options, "raw": True}
    common = ["say", text, "--device", "cpu", "--threads", "2", "-q", *flags]
    program(*common, "-o", tmp_path / "a.wav")
    floats = program(*common, "-o", "-", "--format", "raw-float").stdout
    audio = engine.say(text, **options)
    assert audio.encode("wav") == (tmp_path / "a.wav").read_bytes()
    assert audio.samples.tobytes() == floats
    assert len(floats) > 100_000


def test_streams_are_the_audio_in_parts(engine, text):
    chunks = list(engine.stream(text, seed=7, raw=True))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks))) and len(chunks) == 2
    texts = [chunk.text for chunk in chunks]
    assert texts == ["This is the first paragraph.", "And this is the second one."]
    assert [chunk.start for chunk in chunks] == [0, len(chunks[0].samples)]
    assert {chunk.sample_rate for chunk in chunks} == {24_000} and chunks[0].finish_reason is None
    whole = engine.say(text, seed=7, raw=True).samples
    assert numpy.array_equal(numpy.concatenate([chunk.samples for chunk in chunks]), whole)
    assert not numpy.array_equal(engine.say(text, seed=8, raw=True).samples, whole)
    assert repr(chunks[1]).startswith("<orate.Chunk 1: ")


def test_batches_are_the_texts(engine, text):
    one, two = engine.say_batch(["Hello.", text], speed=1.2)
    assert numpy.array_equal(one.samples, engine.say("Hello.", speed=1.2).samples)
    assert numpy.array_equal(two.samples, engine.say(text, speed=1.2).samples)


def test_closed_streams_end(engine, text):
    stream = engine.stream(text)
    assert stream.remaining_chars > 0 and stream.sample_rate == 24_000
    next(stream)
    stream.close()
    assert list(stream) == [] and stream.remaining_chars == 0
    stream.close()


def test_unknown_keywords_name_close_ones(engine):
    def batch(text, **more):
        engine.say_batch([text], **more)

    for call in [engine.say, engine.stream, engine.astream, batch]:
        with pytest.raises(TypeError, match="unexpected keyword argument 'sped'; did you mean .*speed"):
            call("Hello.", sped=1.1)
    with pytest.raises(TypeError, match=r"say\(\).*'zzz'; it has voice, language, .*speed"):
        engine.say("Hello.", zzz=1)
    with pytest.raises(TypeError, match=r"serve\(\).*'no_aut'; did you mean no_auth"):
        orate.serve(engine, no_aut=True)
    with pytest.raises(TypeError, match="speed is a list; give a bool, a number or a str"):
        engine.say("Hello.", speed=[1])
    with pytest.raises(TypeError, match=r"Engine\(\) got .* 'devise'; did you mean device\?"):
        orate.Engine(devise="cpu")
    with pytest.raises(TypeError, match=r"'zzz'; it has model, device, threads"):
        orate.Engine(zzz=1)
    with pytest.raises(TypeError, match=r"say_batch\(\) got .* 'progress'"):
        engine.say_batch(["Hello."], progress=True)


def test_options_come_from_the_declarations(engine):
    assert "speed" in engine.options and "0.7 to 2" in engine.options["speed"]
    assert engine.say("Hello.", speed=numpy.float32(1.5)).duration < engine.say("Hello.", speed=None).duration
    # Another family has this one.
    with pytest.raises(orate.InputError, match="exaggeration.*Chatterbox has it"):
        engine.say("Hello.", exaggeration=0.5)


def test_options_may_be_scalars_of_numpy(engine):
    same = engine.say("1 2.", steps=3, read_numbers=True).samples
    for steps, read in [(3.0, numpy.True_), (numpy.int32(3), True), (numpy.float32(3), numpy.bool_(1))]:
        assert numpy.array_equal(engine.say("1 2.", steps=steps, read_numbers=read).samples, same)
    with pytest.raises(orate.InputError, match="steps is 2.5; choose 1 to 100"):
        engine.say("Hello.", steps=2.5)


def test_the_second_file_of_a_model_can_be_named(tmp_path):
    with pytest.raises(orate.InputError, match="codec is a file; it is the second file of a model"):
        orate.Engine(codec=tmp_path / "codec.gguf")


def test_errors_have_classes_and_kinds(engine, tmp_path):
    with pytest.raises(orate.InputError, match="speed is 9") as caught:
        engine.say("Hello.", speed=9)
    assert isinstance(caught.value, (orate.Error, ValueError)) and caught.value.kind == "input"
    with pytest.raises(ValueError):
        engine.say("")
    with pytest.raises(orate.ModelError, match="no such file") as caught:
        orate.Engine(tmp_path / "nothing")
    assert caught.value.kind == "model"
    with pytest.raises(orate.ModelError, match="orate pull supertonic-3"):
        orate.Engine("supertonic-3")
    with pytest.raises(OSError) as caught:
        orate.Engine(device="cuda:77")
    assert isinstance(caught.value, orate.DeviceError) and caught.value.kind == "device"
    with pytest.raises(orate.InputError, match="device is `cpus`"):
        orate.Engine(device="cpus")
    with pytest.raises(orate.InputError, match="precision is `f31`"):
        orate.Engine(precision="f31")
    with pytest.raises(orate.InputError, match="silence"):
        engine.say("Hello.", silence=99)
    for kind in [orate.InputError, orate.ModelError, orate.DeviceError, orate.Cancelled]:
        assert issubclass(kind, orate.Error) and kind.__doc__


def test_what_the_model_cannot_do_is_an_error(engine, tmp_path):
    assert not engine.can_clone
    audio = engine.say("Hello.")
    for recording in [audio, audio.encode(), tmp_path / "a.wav"]:
        with pytest.raises(orate.Error, match="clone|voices"):
            engine.clone(recording)
    for source in [audio, audio.encode()]:
        with pytest.raises(orate.Error, match="cannot convert recordings; Chatterbox models can"):
            engine.convert(source)
    advice = r"give the path of a file, its bytes, or orate.Audio\(samples, sample_rate\)"
    with pytest.raises(TypeError, match=f"^recording is a int; {advice}$"):
        engine.clone(3)
    with pytest.raises(TypeError, match=f"^source is a ndarray; {advice}$"):
        engine.convert(audio.samples)
    with pytest.raises(orate.Error, match="cannot convert"):
        engine.convert(tmp_path / "a.wav", seed=3)


def test_signatures_are_shown(engine):
    shown = str(inspect.signature(orate.Engine.say))
    assert shown.startswith("(self, /, text, *, voice=None, language=None, seed=0") and "words=False" in shown
    shown = str(inspect.signature(orate.Engine))
    assert shown.startswith("(model=None, *, device='auto'") and shown.endswith("allow_fallback=False)")


def test_engines_are_not_pickled(engine):
    for call in [pickle.dumps, copy.copy, copy.deepcopy]:
        with pytest.raises(TypeError, match=r"an engine cannot be pickled.*open one in each process"):
            call(engine)


def test_progress_ends_with_everything(engine, text):
    shown = []
    engine.say(text, progress=lambda done, total: shown.append((done, total)))
    assert len(shown) == 2 and shown[-1][0] == shown[-1][1] > shown[0][0] > 0

    def fail(done, total):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        engine.say(text, progress=fail)
    engine.say(text, progress=True)
    with pytest.raises(TypeError):
        engine.say(text, progress=3.5)


def test_facts(engine):
    assert engine.family == "Supertonic" and engine.model == "built-in voice"
    assert engine.device.startswith("cpu (") and engine.sample_rate == 24_000 and engine.fallbacks == []
    assert engine.voices and all(isinstance(name, str) for name in engine.voices)
    assert repr(engine) == f"<orate.Engine: built-in voice on {engine.device}>"
    assert numpy.array_equal(engine.say("Hi.", voice=engine.voices[0]).samples, engine.say("Hi.").samples)
    devices = orate.devices()
    assert devices[0].id == "cpu" and repr(devices[0]) == f"<orate.Device cpu: {devices[0].name}>"
    assert all(device.memory is None or device.memory > 0 for device in devices)
    engine.warm_up(2)


def test_kept_voices_are_a_dict(tmp_path):
    voices = orate.voices()
    assert voices.folder == tmp_path / "voices" and len(voices) == 0 and list(voices) == []
    for missing in [lambda: voices["ada"], lambda: voices.__delitem__("ada")]:
        with pytest.raises(KeyError, match="ada"):
            missing()
    with pytest.raises(orate.Error, match="no such file|cannot|not found|No such file"):
        orate.Voice.load(tmp_path / "ada.safetensors")


def test_the_program_is_installed():
    for command in [[INSTALLED], [sys.executable, "-m", "orate"]]:
        version = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout
        assert version.split() == ["orate", orate.__version__]
        wrong = subprocess.run([*command, "say", "Hello.", "--speed", "9", "-o", "-"], capture_output=True)
        assert wrong.returncode == 2 and b"speed is 9" in wrong.stderr
        sound = subprocess.run([*command, "say", "Hello.", "--device", "cpu", "-o", "-"], capture_output=True)
        assert sound.returncode == 0 and sound.stdout.startswith(b"RIFF")


def test_gpus_are_inside():
    # With a software rasterizer, which is only used by its name.
    if "VK_DRIVER_FILES" not in os.environ:
        with pytest.raises(orate.DeviceError, match="(?i)vulkan"):
            orate.Engine(device="vulkan:9")
        return
    assert "vulkan:0" in [device.id for device in orate.devices()]
    tiny = orate.Engine(ORACLE / "supertonic/golden/tiny", device="vulkan:0")
    assert tiny.device.startswith("vulkan:0") and tiny.say("Hello.", language="en").duration > 0.1

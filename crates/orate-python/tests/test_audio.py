"""Audio: what goes in and comes out."""

import io
import pickle
import subprocess
import sys
import wave

import numpy
import pytest

import orate

TONE = (0.1 * numpy.sin(numpy.arange(24_000) / 8)).astype(numpy.float32)


def test_samples_are_floats_that_belong_to_the_caller(engine):
    audio = engine.say("Hello.")
    assert audio.samples.dtype == numpy.float32 and audio.samples.ndim == 1
    assert audio.samples.flags["C_CONTIGUOUS"] and audio.samples.flags["WRITEABLE"]
    assert audio.sample_rate == 24_000 and audio.duration == len(audio.samples) / 24_000
    assert 0.3 < audio.duration < 3 and 0.01 < numpy.abs(audio.samples).max() <= 1
    assert audio.samples is audio.samples


def test_arrays_are_not_copied():
    assert orate.Audio(TONE, 24_000).samples is TONE
    view = TONE[100:]
    assert numpy.shares_memory(orate.Audio(view, 24_000).samples, view)
    # These must be.
    for other in [TONE.astype(numpy.float64), TONE[::-1][::-1].astype(">f4"), TONE.tolist()]:
        assert numpy.array_equal(orate.Audio(other, 24_000).samples, TONE)
    assert numpy.array_equal(orate.Audio(TONE[::2], 24_000).samples, TONE[::2])


def test_samples_from_the_engine_are_not_copied(engine):
    # Their memory is that of the library's vector, which numpy only refers to.
    samples = engine.say("Hello.").samples
    assert not samples.flags["OWNDATA"] and samples.base is not None


@pytest.mark.parametrize("wrong", [(TONE * 32767).astype(numpy.int16), TONE.reshape(2, -1), ["a"], None])
def test_other_arrays_are_refused(wrong):
    with pytest.raises(TypeError, match="samples"):
        orate.Audio(wrong, 24_000)


def test_a_sample_rate_of_zero_is_refused():
    with pytest.raises(orate.InputError, match="sample_rate is 0; choose samples per second"):
        orate.Audio(TONE, 0)


def test_formats(tmp_path):
    audio = orate.Audio(TONE, 24_000)
    starts = {"wav": b"RIFF", "flac": b"fLaC", "mp3": b"\xff", "opus": b"OggS"}
    for format, start in starts.items():
        encoded = audio.encode(format)
        assert encoded.startswith(start), format
        audio.write(tmp_path / f"tone.{format}")
        assert (tmp_path / f"tone.{format}").read_bytes() == encoded
    with wave.open(io.BytesIO(audio.encode())) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 24_000, 24_000)
    with wave.open(io.BytesIO(audio.encode("wav", sample_rate=48_000))) as file:
        assert (file.getframerate(), file.getnframes()) == (48_000, 48_000)
    assert numpy.array_equal(numpy.frombuffer(audio.encode("pcm-float"), "<f4"), TONE)
    assert len(audio.encode("mp3", bit_rate=32_000)) < len(audio.encode("mp3", bit_rate=128_000))
    with pytest.raises(orate.InputError, match="`ogg7`.*wav, .*mp3"):
        audio.encode("ogg7")
    with pytest.raises(orate.DeviceError, match="none/tone.wav"):
        audio.write(tmp_path / "none" / "tone.wav")


def test_notebooks_get_a_player_and_a_picture(tmp_path):
    audio = orate.Audio(TONE, 24_000)
    player = audio._repr_html_()
    assert player.startswith('<audio controls src="data:audio/flac;base64,ZkxhQ')
    assert player.endswith("</audio>")
    plot = audio.plot("A tone")
    assert plot._repr_png_() == plot.png and plot.png.startswith(b"\x89PNG")
    plot.write(tmp_path / "tone.png")
    assert (tmp_path / "tone.png").read_bytes() == plot.png
    with pytest.raises(orate.Error, match="no audio to plot"):
        orate.Audio(TONE[:0], 24_000).plot()


def test_audio_can_be_pickled():
    audio = pickle.loads(pickle.dumps(orate.Audio(TONE, 22_050)))
    assert numpy.array_equal(audio.samples, TONE) and audio.sample_rate == 22_050
    assert repr(audio) == "<orate.Audio: 1.09 s at 22050 Hz>"


def test_importing_does_not_load_numpy():
    # The program `orate` starts faster without it.
    code = "import orate, sys; assert 'numpy' not in sys.modules and 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

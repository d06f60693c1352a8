"""Writes tone.mp3, tone.ogg and tone.m4a: 0.8 s of two tones, with 0.1 s of silence at each end.

    pip install numpy soundfile av && python3 make.py

`resample-16k.wav` and `resample-24k-middle.wav` are `x` and samples 4000 to 8000 of `y` of the oracle's case `resample`
(`oracle/qwen3_tts/dump_golden.py`), as 16-bit integers and floats.
"""

import av
import numpy as np
import soundfile


def tone(rate):
    t = np.arange(rate * 4 // 5) / rate
    envelope = np.clip(np.minimum((t - 0.1) / 0.05, (0.7 - t) / 0.05), 0, 1)
    return (envelope * (0.3 * np.sin(2 * np.pi * 330 * t) + 0.15 * np.sin(2 * np.pi * 1234 * t + 1))).astype(np.float32)


soundfile.write("tone.mp3", tone(22050), 22050, format="MP3")
# The right channel is half as loud, so the mean is three quarters.
soundfile.write("tone.ogg", np.stack([tone(44100), tone(44100) / 2], axis=1), 44100, format="OGG", subtype="VORBIS")
with av.open("tone.m4a", "w") as file:
    stream = file.add_stream("aac", rate=32000, layout="mono")
    stream.bit_rate = 72000
    frame = av.AudioFrame.from_ndarray(tone(32000)[None], format="fltp", layout="mono")
    frame.sample_rate, frame.pts = 32000, 0
    for packet in [*stream.encode(frame), *stream.encode(None)]:
        file.mux(packet)

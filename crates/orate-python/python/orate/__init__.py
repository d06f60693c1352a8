"""Text-to-speech that speaks on whatever machine the user has.

>>> import orate
>>> engine = orate.Engine()                   # the built-in voice on the best device
>>> audio = engine.say("Hello.")
>>> audio.samples.dtype, audio.sample_rate
(dtype('float32'), 24000)
"""

from ._errors import Cancelled, DeviceError, Error, InputError, ModelError
from ._orate import (
    Audio,
    Chunk,
    Device,
    Engine,
    Mark,
    Plot,
    Server,
    Stream,
    Voice,
    VoiceStore,
    Word,
    __version__,
    devices,
    pull,
    serve,
    voices,
)

__all__ = [
    "Audio",
    "Cancelled",
    "Chunk",
    "Device",
    "DeviceError",
    "Engine",
    "Error",
    "InputError",
    "Mark",
    "ModelError",
    "Plot",
    "Server",
    "Stream",
    "Voice",
    "VoiceStore",
    "Word",
    "__version__",
    "devices",
    "pull",
    "serve",
    "voices",
]

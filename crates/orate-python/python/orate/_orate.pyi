from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NoReturn, final

from numpy import float32
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Ahead",
    "Audio",
    "Chunk",
    "Device",
    "Engine",
    "Mark",
    "Plot",
    "Server",
    "Stream",
    "Voice",
    "VoiceStore",
    "Word",
    "__version__",
    "_word",
    "devices",
    "main",
    "pull",
    "serve",
    "voices",
]

__version__: str

_Path = str | PathLike[str]
_Progress = bool | Callable[[int, int], object]
_Option = bool | float | str | None
_Voice = Voice | _Path
_Model = Engine | _Path
_Models = _Model | Sequence[_Model] | Mapping[str, _Model]

@final
class Engine:
    def __new__(
        cls,
        model: _Path | None = None,
        *,
        device: str = "auto",
        threads: int | None = None,
        precision: str = "stored",
        kv: str = "auto",
        isa: str | None = None,
        codec: _Path | None = None,
        cache: _Path | None = None,
        allow_fallback: bool = False,
    ) -> Engine: ...
    def say(
        self,
        text: str,
        *,
        voice: _Voice | None = None,
        language: str | None = None,
        seed: int = 0,
        silence: float | None = None,
        words: bool = False,
        ssml: bool = False,
        tags: bool = False,
        lexicon: Mapping[str, str] | _Path | None = None,
        # Voices, engines, or tuples of an engine, its voice and a dict of options.
        voices: Mapping[str, object] | None = None,
        progress: _Progress | None = None,
        **options: _Option,
    ) -> Audio: ...
    def say_batch(
        self,
        texts: Sequence[str],
        *,
        voice: _Voice | None = None,
        language: str | None = None,
        seed: int = 0,
        silence: float | None = None,
        words: bool = False,
        ssml: bool = False,
        tags: bool = False,
        lexicon: Mapping[str, str] | _Path | None = None,
        # Voices, engines, or tuples of an engine, its voice and a dict of options.
        voices: Mapping[str, object] | None = None,
        **options: _Option,
    ) -> list[Audio]: ...
    def stream(
        self,
        text: str,
        *,
        voice: _Voice | None = None,
        language: str | None = None,
        seed: int = 0,
        silence: float | None = None,
        words: bool = False,
        ssml: bool = False,
        tags: bool = False,
        lexicon: Mapping[str, str] | _Path | None = None,
        # Voices, engines, or tuples of an engine, its voice and a dict of options.
        voices: Mapping[str, object] | None = None,
        **options: _Option,
    ) -> Stream: ...
    def astream(
        self,
        text: str,
        *,
        voice: _Voice | None = None,
        language: str | None = None,
        seed: int = 0,
        silence: float | None = None,
        words: bool = False,
        ssml: bool = False,
        tags: bool = False,
        lexicon: Mapping[str, str] | _Path | None = None,
        # Voices, engines, or tuples of an engine, its voice and a dict of options.
        voices: Mapping[str, object] | None = None,
        **options: _Option,
    ) -> AsyncGenerator[Chunk, None]: ...
    def clone(self, recording: _Path | bytes | Audio, *, transcript: str | None = None) -> Voice: ...
    def convert(
        self,
        source: _Path | bytes | Audio,
        *,
        voice: _Voice | None = None,
        seed: int = 0,
        progress: _Progress | None = None,
        **options: _Option,
    ) -> Audio: ...
    def warm_up(
        self,
        callers: int = 1,
        *,
        voice: _Voice | None = None,
        language: str | None = None,
        **options: _Option,
    ) -> None: ...
    @property
    def voices(self) -> list[str]: ...
    @property
    def options(self) -> dict[str, str]: ...
    @property
    def model(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def can_clone(self) -> bool: ...
    @property
    def fallbacks(self) -> list[str]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Audio:
    def __new__(
        cls,
        samples: ArrayLike,
        sample_rate: int,
        words: Sequence[Word] = (),
        marks: Sequence[Mark] = (),
    ) -> Audio: ...
    @property
    def samples(self) -> NDArray[float32]: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def duration(self) -> float: ...
    @property
    def words(self) -> tuple[Word, ...]: ...
    @property
    def marks(self) -> tuple[Mark, ...]: ...
    def write(self, path: _Path) -> None: ...
    def encode(
        self, format: str = "wav", *, bit_rate: int | None = None, sample_rate: int | None = None
    ) -> bytes: ...
    def captions(self, format: Literal["srt", "vtt", "json"] = "srt") -> str: ...
    def write_captions(self, path: _Path) -> None: ...
    def plot(self, title: str = "") -> Plot: ...
    def _repr_html_(self) -> str: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Word:
    @property
    def text(self) -> str: ...
    @property
    def display(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def span(self) -> tuple[int, int]: ...
    @property
    def source(self) -> str: ...
    @property
    def piece(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Mark:
    def __new__(cls, name: str, time: float) -> Mark: ...
    @property
    def name(self) -> str: ...
    @property
    def time(self) -> float: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Plot:
    @property
    def png(self) -> bytes: ...
    def write(self, path: _Path) -> None: ...
    def _repr_png_(self) -> bytes: ...

@final
class Chunk:
    @property
    def samples(self) -> NDArray[float32]: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def words(self) -> tuple[Word, ...]: ...
    @property
    def marks(self) -> tuple[Mark, ...]: ...
    @property
    def finish_reason(self) -> str | None: ...

@final
class Stream:
    def __iter__(self) -> Stream: ...
    def __next__(self) -> Chunk: ...
    def close(self) -> None: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def remaining_chars(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    def _ahead(self, wake: Callable[[], object]) -> Ahead: ...

@final
class Ahead:
    def take(self) -> Chunk | None: ...
    @property
    def is_over(self) -> bool: ...
    def close(self) -> None: ...

@final
class Voice:
    def __new__(cls, data: bytes) -> Voice: ...
    @staticmethod
    def load(path: _Path) -> Voice: ...
    def save(self, path: _Path) -> None: ...
    def to_bytes(self) -> bytes: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    @property
    def family(self) -> str: ...

@final
class VoiceStore:
    @property
    def folder(self) -> Path: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...
    def __getitem__(self, name: str, /) -> Voice: ...
    def __setitem__(self, name: str, voice: Voice, /) -> None: ...
    def __delitem__(self, name: str, /) -> None: ...

@final
class Device:
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> int | None: ...
    @property
    def free_memory(self) -> int | None: ...
    @property
    def driver(self) -> str: ...

def devices() -> list[Device]: ...
def pull(
    model: str,
    *,
    to: _Path | None = None,
    include: Sequence[str] | None = None,
    progress: _Progress | None = None,
) -> Path: ...
@final
class Server:
    def __new__(
        cls,
        models: _Models | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 8880,
        **options: object,
    ) -> Server: ...
    @property
    def url(self) -> str: ...
    def close(self) -> None: ...
    def __enter__(self) -> Server: ...
    def __exit__(self, *_exception: object) -> None: ...

def serve(
    models: _Models | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8880,
    **options: object,
) -> None: ...
def _word(
    text: str,
    display: str,
    span: tuple[int, int],
    times: tuple[float, float, str, int],
    details: tuple[bool, float, int],
) -> Word: ...
def voices(folder: _Path | None = None) -> VoiceStore: ...
def main(args: Sequence[str]) -> int: ...

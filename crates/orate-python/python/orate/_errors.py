"""Exceptions."""


class Error(Exception):
    """Any error of Orate. The message says what is wrong, where, and what to do."""

    kind: str = "error"


class InputError(Error, ValueError):
    """A text, an option or a voice is not valid."""

    kind = "input"


class ModelError(Error):
    """The files of a model or voice are missing or damaged."""

    kind = "model"


class DeviceError(Error, OSError):
    """The system failed: a device, memory, a file, the network."""

    kind = "device"


class Cancelled(Error):
    """The stream was closed while it computed."""

    kind = "cancelled"

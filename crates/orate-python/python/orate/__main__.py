"""The program `orate`."""

import signal
import sys

from ._orate import main as run


def main() -> None:
    """Runs the program with the arguments of this process."""
    # As in a program without Python: Ctrl-C ends it where the program does not handle it itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

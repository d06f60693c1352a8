"""A progress bar for notebooks and terminals."""

import sys


def bar(unit):
    """Returns a function of what is done and all there is, which shows both."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):
        return _notebook(unit)
    return _terminal(unit) if sys.stderr.isatty() else lambda done, total: None


def _notebook(unit):
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)

    def show(done, total):
        text = f"{done:,} of {total:,}{unit}"
        handle.update(HTML(f'<progress value="{done}" max="{max(total, 1)}"></progress> {text}'))

    return show


def _terminal(unit):
    def show(done, total):
        end = "\n" if done >= total else ""
        print(f"\r{done:,} of {total:,}{unit}\x1b[K", end=end, file=sys.stderr, flush=True)

    return show

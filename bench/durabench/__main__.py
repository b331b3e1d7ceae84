"""``durabench``, ``python -m durabench``: the command line."""

import signal


def main() -> None:
    """Run it. Until it is there to hear of Ctrl-C, that ends this process at once and without a word."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from durabench import cli

    cli.main()


if __name__ == "__main__":
    main()

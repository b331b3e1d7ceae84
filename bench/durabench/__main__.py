"""``python -m durabench``: the command line."""

from durabench.cli import main

if __name__ == "__main__":
    main()

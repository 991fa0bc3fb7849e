"""`python -m fray`: the `fray` command of this interpreter."""

from fray._cli.main import entry

if __name__ == "__main__":
    entry()

"""``python -m facetvae``: the command line."""

from facetvae.command import main

if __name__ == "__main__":
    main()

"""`python -m detector.cli`: the command line where no script is installed."""

from detector.cli import main

main(prog_name="ofuwatch")

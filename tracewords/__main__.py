"""`python -m tracewords`."""

from tracewords.cli import main

main()

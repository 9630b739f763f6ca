"""`python -m strandline` is `strand`."""

from strandline.cli.main import main

main()

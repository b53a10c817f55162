"""The command line. `table.py` lists the commands, which are functions in the modules of `commands/`."""

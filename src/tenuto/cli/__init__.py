"""The command line: parse, call the engine, render. Nothing here decides what an execution is."""

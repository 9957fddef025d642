"""Our own agent loop: a process that talks to a model's API and uses tools, one session each.

The driver's side is `tenuto.runners.cli`. Only this process loads the libraries of the providers.
"""

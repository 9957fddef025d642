"""Code-mode: the JavaScript virtual machine that runs inside a keeper's stem, and what it needs."""

"""The first words of a keeper's interpreter; its starter need not load the keeper itself."""

from __future__ import annotations

BOOT = (
    "import os,sys\n"
    "if os.fork(): os._exit(0)\n"
    "sys.path.insert(0,sys.argv.pop(1))\n"
    "from tenuto.keeper.zygote import main\n"
    "main(sys.argv[1:])"
)

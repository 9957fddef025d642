"""Getting work to a keeper, and talking to one."""

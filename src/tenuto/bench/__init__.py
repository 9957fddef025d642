"""How fast it is, beside floors measured in the same run: `tenuto bench`."""

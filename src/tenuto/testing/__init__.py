"""For tests of Tenuto and of programs that use it: dummies of the ports, and their conformance."""

"""What is on disk: the project's folder, the tapes as readers see them, the index over them."""

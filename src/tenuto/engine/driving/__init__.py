"""A task's driver: the process that plans, asks, runs steps and records each as it ends."""

"""The part that must not break: one small process per execution that owns child, pipes and tape.

Standard library only, and nothing of ours from outside this folder. Everything is imported before
the first job is taken, because the installation may be upgraded under a running keeper.
"""

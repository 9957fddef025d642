"""A scripted model on loopback that speaks the providers' protocols: no real model is behind it."""

from tenuto.testing.models.server import Answer, Call, Model, Seen, Step

__all__ = ["Answer", "Call", "Model", "Seen", "Step"]

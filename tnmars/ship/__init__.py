"""Shipping: frozen layers, ONNX and plain source."""

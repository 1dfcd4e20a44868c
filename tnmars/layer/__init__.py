"""The layer: an `nn.Module` with parameters, masks and the emitted code."""

"""Files: models and checkpoints as safetensors with graphs, selectors and plans in the header."""

"""What the engine does with KV besides computing it: compress, draft, offload."""

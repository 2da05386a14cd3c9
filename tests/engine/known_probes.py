"""The probe of a model takes longer than the rest of an engine, so tests probe each model once a process.

Engines of equal weights, configuration and settings share what the first probe found. Tests of the probe call it
themselves; a test that changes the code under an engine takes the fixture ``fresh_probe``.
"""

import zlib

import torch

from rksc_tot.engine.model import capability_check, hf_compat
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.model.logit_lens import find_lens
from rksc_tot.engine.model.onednn_linear import worth_packing

found = {}  # by model and settings: capabilities, and why there is no lens
real_probe = capability_check.probe


def checksum(tensor):
    return zlib.crc32(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())


def identity(model, packed):
    """All values that the probe depends on, except for code."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = tuple((name, tensor.dtype, tensor.device, checksum(tensor)) for name, tensor in tensors.items())
    changed = {type(module) for module in model.modules() if "forward" in vars(module) or module._forward_hooks}
    return None if changed else (type(model), model.config.to_json_string(), weights, packed, torch.get_num_threads())


def known_probe(model, arena, *, packed=False):
    """``probe`` with a cache of known capabilities."""
    key = identity(model, packed)
    if key is None or key not in found:
        forward, capabilities = real_probe(model, arena, packed=packed)
        found[key] = capabilities, forward.no_lens
        return forward, capabilities
    capabilities, no_lens = found[key]
    forward = Forward(model, arena, packed=worth_packing(model) if packed is None else packed)
    hf_compat.register()
    if capabilities.layers:
        forward.take("mask")
        forward.lens = find_lens(forward.model, list(range(1, 1 + capability_check.TRUNK)))
    forward.no_lens = no_lens
    forward.take(capabilities.route)
    return forward, capabilities
